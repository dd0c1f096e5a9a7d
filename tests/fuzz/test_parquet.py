"""Damaged parquet files: packing ends in an error, or in shards of what could be read."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.data.imagenet.pack import pack
from paperbench.errors import PaperbenchError
from tests.data.imagenet.miniature import SYNSETS, hugging_face_path, of, write_parquet_file
from tests.fuzz.strategies import damaged, is_refused, times_examples
from tests.limits import limit_address_space, limit_seconds

pytest.importorskip("pyarrow", reason="needs pyarrow")

TOKENS = (
    *(b"PAR1", b"PAR1" * 2, b"\0", bytes(8), b"\xff" * 8, b"\xff\xff\xff\x7f", b"\x15\0", b"\x15\x02"),
    *(b"\x18\x05bytes", b"\xfe\xff\xff\xff\x0f", b"\x80" * 9 + b"\x01", b"\xff" * 9 + b"\x01"),
    *(b"\x19\xfc\xff\xff\xff\x07", b"\x1c" * 200),
)
"""Lengths, signs of fields and names as the footer and the pages have them."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of one file each for training and testing, with three rows of a few bytes."""
    source = tmp_path_factory.mktemp("parquet")
    rows = [(image.data[:20], hugging_face_path(image), image.label) for image in of("train")[:3]]
    for split in ("train", "validation"):
        write_parquet_file(source / f"{split}-00000-of-00001.parquet", rows, rows_per_group=2)
    return source


@times_examples(1)
@given(data=st.data())
def test_damaged_parquet_file_is_packed_or_refused(source: Path, data: st.DataObject) -> None:
    whole = (source / "validation-00000-of-00001.parquet").read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    parts = [whole[:footer], whole[footer:]]
    chosen = data.draw(st.sampled_from([0, 1, 1]))
    parts[chosen] = data.draw(damaged(parts[chosen], TOKENS))
    train, out = source / "train-00000-of-00001.parquet", source / "out"
    train.write_bytes(b"".join(parts))
    shutil.rmtree(out, ignore_errors=True)
    with limit_seconds(), limit_address_space():
        if is_refused(PaperbenchError, pack, source, out, SYNSETS, io.StringIO()):
            assert not (out / "train-00000-of-00001.tar").exists()
            return
    with tarfile.open(out / "train-00000-of-00001.tar", "r:") as shard:
        for member in shard:
            assert re.fullmatch(rf"({'|'.join(SYNSETS)})/[\w-]+\.JPEG", member.name, re.ASCII)
            assert member.size > 0
    assert (out / "train-00000-of-00001.tar").stat().st_size <= 3 * (train.stat().st_size + 2**20)
