from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from paperbench.data.imagenet.build import PARTIAL, index_images
from paperbench.data.imagenet.index import ImageFiles, fingerprint
from paperbench.data.imagenet.index_file import FILE_NAME, format_line, format_place, known_hashes, parse
from paperbench.data.sources import load_dataset, load_index
from paperbench.errors import PaperbenchError
from tests.data.imagenet.miniature import write_folders
from tests.limits import limit_memory, limit_seconds


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("indexed")
    index_images(write_folders(data / "images"), data, io.StringIO(), threads=1, accepts_subset=True)
    return data


@pytest.fixture
def data(indexed: Path, tmp_path: Path) -> Path:
    """A data directory with an index of the miniature, whose images are in it."""
    return shutil.copytree(indexed, tmp_path / "my data")


def files_of(labels: list[int], hashes: list[bytes]) -> ImageFiles:
    numbers = np.zeros(len(labels), np.int64)
    digests = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
    return ImageFiles(Path(), np.array(labels), digests, ("a",), numbers, numbers, numbers)


def test_fingerprint_is_sha256_of_numbers_labels_and_hashes() -> None:
    one, two, three = (hashlib.sha256(bytes([i])).digest() for i in range(3))
    expected = hashlib.sha256(b"2 images\n" + bytes([3] + [0] * 7 + [0, 1] + [0] * 6) + one + two)
    expected.update(b"1 images\n" + bytes([7] + [0] * 7) + three)
    assert fingerprint(files_of([3, 256], [one, two]), files_of([7], [three])) == expected.hexdigest()


def test_places_keep_any_file_name_on_one_line(tmp_path: Path) -> None:
    names = [
        "a b.JPEG",
        "100%.JPEG",
        "tab\tand\nline",
        "Füchse.JPEG",
        os.fsdecode(b"\xff\xfe"),
        "x" * 200,
        "a/b/c",
        " ",
    ]
    file = tmp_path / "file"
    file.write_bytes(bytes(1_000))
    os.utime(file, ns=(0, -5))
    lines = sorted(
        format_line("test", 999, bytes([i] * 32), format_place(name, 10, 900, file.stat()))
        for i, name in enumerate(names)
    )
    images = parse(lines, Path())
    files = images.files
    assert files.paths == names
    assert (files.labels.tolist(), files.offsets.tolist(), files.lengths.tolist()) == ([999] * 8, [10] * 8, [900] * 8)
    assert files.hashes.tolist() == [[i] * 32 for i in range(8)]
    assert len(set(images.mtime.tolist())) == 1
    assert len(known_hashes(lines)) == 8


def test_images_of_one_container_share_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1_000))
    status = (tmp_path / "file").stat()
    lines = [format_line("train", i, bytes(32), format_place("shard.tar", 7 * i, 7, status)) for i in range(20)]
    images = parse(lines, Path())
    assert (images.files.paths, images.files.container.tolist()) == (["shard.tar"], [0] * 20)


@pytest.mark.parametrize("at_once", [1, 7, 30])
def test_lines_are_parsed_in_parts_of_any_size(at_once: int, data: Path) -> None:
    expected, lines = load_index(data).images, (data / FILE_NAME).read_bytes().splitlines(keepends=True)[1:-1]
    found = parse(lines, data, at_once)
    assert fingerprint(found.train, found.test) == fingerprint(expected.train, expected.test)
    assert found.files.paths == expected.files.paths
    with pytest.raises(ValueError, match="out of order"):
        parse(lines[::-1], data, at_once)


EDITS: dict[str, tuple[bytes, bytes, str]] = {
    "hash": (rb"(?m)^train 0000 .", b"train 0000 f", "out of order|checksum"),
    "label": (rb"(test  0000.*\n)test  0000", rb"\1test  0001", "checksum"),
    "label beyond the classes": (rb"train \d{4} (.*\n)(?=sha)", rb"train 1000 \1", "is damaged"),
    "split": (rb"\ntrain ", b"\ntrial ", "is damaged"),
    "separator": (rb"(\ntrain \d{4}) ", rb"\1_", "is damaged"),
    "hexadecimal": (rb"(\ntrain \d{4} )....", rb"\1ABCD", "is damaged"),
    "number": (rb"(\ntrain .{69}) 0", rb"\1 x", "is damaged"),
    "place beyond the file": (rb"( \d{10}) \d{13}( \d{18} val)", rb"\1 0000000000001\2", "is damaged"),
    "absolute path": (rb" train/", b" /etc/passwd", "is damaged"),
    "path that leaves the root": (rb" train/", b" train/%2e%2e/", "is damaged"),
    "line without a path": (rb" train/.*\n", b"\n", "is damaged"),
    "lost line": (rb"\ntrain .*", b"", "checksum"),
    "repeated line": (rb"(\ntrain .*)", rb"\1\1", "checksum"),
    "swapped lines": (rb"(\ntest .*)(\ntrain .*)", rb"\2\1", "out of order"),
    "root with NUL": (rb'"root":"[^"]*', b'"root":"a%00b', "its root is no path"),
    "moved root": (rb'"root":"[^"]*', b'"root":"other', "checksum"),
    "claim to be complete": (rb'"is_complete":false', b'"is_complete":true', "checksum"),
    "claim to be proven": (
        rb'("fingerprint":)("\w+")(.*)"proven":null',
        rb'\1\2\3"proven":\2',
        "checksum",
    ),
    "number of images": (rb'"train":20', b'"train":21', "checksum"),
    "unknown key": (rb"^{", b'{"x":1,', "x: unknown key"),
    "no header": (rb"^.*\n", b"", "is not JSON"),
    "no checksum": (rb"sha256 \w+\n", b"", "checksum|cut off"),
    "cut in a line": (rb"(?s)^(.{3000}).*", rb"\1", "cut off|checksum"),
    "nothing": (rb"(?s).*", b"", "is not JSON"),
    "text": (rb"(?s).*", b"\xff\xfe\n" * 99, "is not JSON"),
    "one long line": (rb"(?s)\n.*", b"\n" + b"x" * 20_000_000, "it lists no images"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_changed_index_is_refused_with_what_to_do(edit: str, data: Path) -> None:
    pattern, replacement, reason = EDITS[edit]
    file = data / FILE_NAME
    original = file.read_bytes()
    file.write_bytes(re.sub(pattern, replacement, original, count=1))
    assert file.read_bytes() != original
    with (
        pytest.raises(PaperbenchError, match=rf"(?s)was changed or is cut off: .*({reason}).*") as caught,
        limit_memory(200),
    ):
        load_dataset("imagenet", data)
    assert f"`paperbench data index imagenet DIR --data '{data}'`" in str(caught.value)


@pytest.mark.parametrize("suffix", ["", PARTIAL])
def test_sparse_file_is_left_unread(suffix: str, data: Path) -> None:
    lines = (data / FILE_NAME).read_bytes().splitlines(keepends=True)
    file = data / (FILE_NAME + suffix)
    file.write_bytes(b"".join(lines[1:-1] if suffix else lines[:-1]))
    os.truncate(file, 2**31)
    with limit_seconds(), limit_memory(50):
        if suffix:
            index_images(data / "images", data, io.StringIO(), threads=1, accepts_subset=True)
        else:
            with pytest.raises(PaperbenchError, match="its checksum does not match"):
                load_dataset("imagenet", data)


def test_error_without_an_index_says_how_to_make_one(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PaperbenchError, match=rf"`paperbench data index imagenet DIR --data {tmp_path}`, where DIR"):
        load_dataset("imagenet", tmp_path)
    images = data / "images"
    with pytest.raises(PaperbenchError, match=f"`paperbench data index imagenet '{images}' --data '{images}'`"):
        load_dataset("imagenet", images)


def test_header_alone_makes_no_images_canonical(data: Path) -> None:
    file = data / FILE_NAME
    first, *lines, _ = file.read_bytes().splitlines(keepends=True)
    header = {**json.loads(first), "proven": "0" * 64, "fingerprint": "0" * 64}
    edited = b"".join([json.dumps(header).encode() + b"\n", *lines])
    file.write_bytes(edited + b"sha256 %s\n" % hashlib.sha256(edited).hexdigest().encode())
    assert not load_dataset("imagenet", data).canonical
