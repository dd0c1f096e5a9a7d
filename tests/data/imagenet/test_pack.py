"""`data pack`: Hugging Face's parquet files become tar files with the images unchanged."""

from __future__ import annotations

import hashlib
import io
import resource
import shutil
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from paperbench.cli.main import main
from paperbench.data.imagenet import pack as packing
from paperbench.errors import PaperbenchError
from tests.data.imagenet.miniature import SYNSETS, Terminal, of, write_parquet, write_parquet_file
from tests.limits import limit_memory

pytest.importorskip("pyarrow", reason="needs pyarrow")

JPEG = of("train")[0].data
TRAIN, VALIDATION = "train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"
UNREADABLE = r"validation-00000-of-00001.parquet cannot be read .* Download it again"
Row = tuple[bytes | None, str | None, int | None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "parquet")


def pack(source: Path, target: Path, stream: TextIO | None = None) -> tuple[int, int]:
    return packing.pack(source, target, SYNSETS, stream or io.StringIO())


def members(shard: Path) -> dict[str, bytes]:
    with tarfile.open(shard, "r:") as archive:
        assert {(member.mtime, member.uid, member.mode) for member in archive} == {(0, 0, 0o644)}
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def pack_rows(tmp_path: Path, rows: Sequence[Row], **options: object) -> Path:
    """Pack a training file with these rows; return its shard."""
    write_parquet_file(tmp_path / TRAIN, rows, **options)
    write_parquet_file(tmp_path / VALIDATION, [(JPEG, None, 0)])
    pack(tmp_path, tmp_path / "out")
    return tmp_path / "out" / "train-00000-of-00001.tar"


def test_shards_have_the_bytes_of_all_images_by_synset(source: Path, tmp_path: Path) -> None:
    assert pack(source, tmp_path / "out") == (20, 10)
    shards = {shard.name: members(shard) for shard in (tmp_path / "out").iterdir()}
    assert set(shards) == {"train-00000-of-00002.tar", "train-00001-of-00002.tar", "val-00000-of-00001.tar"}
    for split, prefix in (("train", "train"), ("test", "val")):
        packed = {
            name: data for shard, found in shards.items() if shard.startswith(prefix) for name, data in found.items()
        }
        assert packed == {f"{example.synset}/{example.name}": example.data for example in of(split)}


def test_same_images_give_the_same_shards_byte_for_byte(source: Path, tmp_path: Path) -> None:
    again = write_parquet(tmp_path / "again", rows_per_group=1)
    pack(source, tmp_path / "out")
    pack(again / "data", tmp_path / "out2")
    for shard in (tmp_path / "out").iterdir():
        assert shard.read_bytes() == (tmp_path / "out2" / shard.name).read_bytes()


def test_packing_goes_on_where_an_error_ended_it(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "whole")
    out, second = tmp_path / "out", source / "data" / "train-00001-of-00002.parquet"
    rows = second.read_bytes()
    write_parquet_file(second, [(JPEG, None, 0), (JPEG, None, -1)])
    with pytest.raises(PaperbenchError, match="row 1 has the label -1"):
        pack(source, out)
    (first,) = out.iterdir()
    written, leftover = first.stat().st_mtime_ns, out / "train-00001-of-00002.tar.7-0123abcd.tmp"
    leftover.write_bytes(b"half")
    second.write_bytes(rows)
    assert pack(source, out, stream := Terminal()) == (20, 10)
    assert stream.getvalue().startswith("\rpacking: 20 of 30 images, about ")
    assert first.stat().st_mtime_ns == written
    assert {shard.name: shard.read_bytes() for shard in out.iterdir()} == {
        shard.name: shard.read_bytes() for shard in (tmp_path / "whole").iterdir()
    }


def test_members_have_unique_plain_names(tmp_path: Path) -> None:
    paths = ["a.jpg", "b/a.png", None, "../../é\n*.JPEG", "x" * 300, f"n01440764_7_{SYNSETS[0]}.JPEG"]
    shard = pack_rows(tmp_path, [(JPEG, path, 0) for path in paths])
    assert [name.removeprefix("n01440764/") for name in members(shard)] == [
        "a.JPEG",
        "train-00000-of-00001_00001.JPEG",
        "train-00000-of-00001_00002.JPEG",
        "___.JPEG",
        f"{'x' * 80}.JPEG",
        "n01440764_7.JPEG",
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((JPEG, None, -1), "row 1 has the label -1; ImageNet has 0 to 4"),
        ((JPEG, None, 5), "row 1 has the label 5"),
        ((JPEG, None, None), "row 1 has the label None"),
        ((None, "a.JPEG", 0), "row 1 has no image"),
        ((b"", "a.JPEG", 0), "row 1 has no image"),
        (
            (JPEG, f"{SYNSETS[2]}_3_{SYNSETS[2]}.JPEG", 1),
            f"has the label of {SYNSETS[1]}, but its path is {SYNSETS[2]}_3",
        ),
    ],
)
def test_unusable_row_is_named(tmp_path: Path, row: Row, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        pack_rows(tmp_path, [(JPEG, None, 0), row])
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("validation", ["validation", "val"])
def test_files_with_hashes_in_their_names_are_packed(source: Path, tmp_path: Path, validation: str) -> None:
    for path in (source / "data").iterdir():
        name = f"{path.stem}-{hashlib.md5(path.stem.encode()).hexdigest()[:16]}.parquet"
        path.rename(path.with_name(name.replace("validation", validation)))
    assert pack(source, tmp_path / "out") == (20, 10)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "train-00000-of-00002.tar",
        "train-00001-of-00002.tar",
        "val-00000-of-00001.tar",
    }
    (twice,) = (source / "data").glob("val*")
    shutil.copy(twice, twice.with_name(f"{validation}-00000-of-00001.parquet"))
    with pytest.raises(PaperbenchError, match="two sets of files val"):
        pack(source, tmp_path / "out")


def columns_of_another_set(path: Path) -> None:
    import pyarrow as pa
    from pyarrow.parquet import write_table

    write_table(pa.table({"img": [b"x"], "label": ["cat"]}), path)


def nest_deeply(path: Path) -> None:
    group, leaf = b"\x35\x02\x18\x01a\x15\x02\0", b"\x15\x0c\x25\x02\x18\x01a\0"  # in Thrift's compact protocol
    nested = b"\x19\xfc\xff\xff\x03" + 65_534 * group + leaf  # a list of 65,535: each of them has the next one in it
    footer = b"\x15\x04" + nested + b"\x16\0" + b"\x19\x0c" + b"\0"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Path.unlink, r"data has no files val\*"),
        (
            lambda path: path.with_name("train-00001-of-00002.parquet").unlink(),
            "files: train-00001-of-00002.parquet\\.",
        ),
        (lambda path: shutil.copy(path, path.with_name("validation-00000-of-00014.parquet")), "two sets of files val"),
        (lambda path: shutil.rmtree(path.parent), r"has no files train\*"),
        (columns_of_another_set, r"columns image.bytes \(BYTE_ARRAY\), .* It has img \(BYTE_ARRAY\), label \(BYTE"),
        (lambda path: path.write_bytes(b""), UNREADABLE),
        (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), UNREADABLE),
        (lambda path: path.write_bytes(b"PAR1" * 50), UNREADABLE),
        (nest_deeply, r"cannot be read .*deeply nested"),
    ],
)
def test_unusable_files_are_refused_before_any_shard(
    change: Callable[[Path], object], message: str, source: Path, tmp_path: Path
) -> None:
    change(source / "data" / VALIDATION)
    with pytest.raises(PaperbenchError, match=message):
        pack(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_full_disk_is_noticed_before_packing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(PaperbenchError, match=r"need about .* GB in .*out, which has 0.0 GB left"):
        pack(source, tmp_path / "out")


def test_missing_pyarrow_is_explained(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(PaperbenchError, match="pip install pyarrow"):
        pack(source, tmp_path / "out")


def test_memory_is_that_of_a_row_group(tmp_path: Path) -> None:
    megabyte = np.random.default_rng(1).bytes(2**20)
    rows: list[Row] = [(megabyte[i:], None, 0) for i in range(30)]
    write_parquet_file(tmp_path / TRAIN, rows, rows_per_group=4, use_dictionary=False)
    del rows
    write_parquet_file(tmp_path / VALIDATION, [(JPEG, None, 0)])
    with limit_memory(20):
        pack(tmp_path, tmp_path / "out")


def number(value: int) -> bytes:
    """A number of five bytes in Thrift's compact protocol."""
    return bytes([2 * value >> 7 * i & 127 | 128 * (i < 4) for i in range(5)])


@pytest.mark.full  # it unpacks 128 MB
def test_page_that_claims_much_memory_is_refused(tmp_path: Path) -> None:
    size, path = 2**27, tmp_path / TRAIN
    write_parquet_file(path, [(bytes(size), None, 0)], use_dictionary=False, compression="zstd", write_statistics=False)
    page, footer = path.read_bytes()[:100], path.read_bytes()[100:]
    for claimed in range(size, size + 200):  # by page, column and row group
        page, footer = page.replace(number(claimed), number(2**31 - 1)), footer.replace(number(claimed), number(7))
    path.write_bytes(page + footer)
    write_parquet_file(tmp_path / VALIDATION, [(JPEG, None, 0)])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(PaperbenchError, match=r"cannot be read \(ArrowMemoryError"):
        pack(tmp_path, tmp_path / "out")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True, "compression": "none"},
        {"use_dictionary": False, "compression": "none", "column_encoding": {"image.bytes": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "compression": "zstd"},
    ],
)
def test_images_far_larger_than_their_file_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    rows: list[Row] = [(JPEG * 100, None, 0)] * 100
    with pytest.raises(PaperbenchError, match="far more images than its size allows"):
        pack_rows(tmp_path, rows, rows_per_group=len(rows), **options)


def test_command_prints_the_next_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (TRAIN, VALIDATION):
        write_parquet_file(tmp_path / name, [(JPEG, None, 999)] * 2)
    out = tmp_path / "my shards"
    assert main(["data", "pack", "imagenet", str(tmp_path), str(out)]) == 0
    said = capsys.readouterr().out
    assert "2 images to train on, and 2 to test" in said
    assert said.endswith(f"\nNext: paperbench data index imagenet '{out}'\n")
    assert len(list(out.iterdir())) == 2
