from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from paperbench.data.imagenet.containers import open_container, tar_members
from paperbench.errors import PaperbenchError
from tests.data.imagenet import miniature
from tests.limits import limit_seconds

LONG = f"b/{'long' * 60}.JPEG"
FILES = {"a/1.JPEG": b"one", "a/2.JPEG": b"", "a/3.JPEG": b"3" * 512, LONG: b"4" * 513, "é.png": b"5"}
FORMATS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)


def tar(form: int, *others: tarfile.TarInfo) -> bytes:
    return miniature.tar(FILES.items(), form, others)


def other(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("other")
    info.type, info.linkname, info.size = kind, "a/1.JPEG", 4096
    return info


def members(path: Path, content: bytes) -> dict[str, bytes]:
    path.write_bytes(content)
    with open_container(path) as (read, size):
        return {name: read(length, offset) for name, offset, length in tar_members(read, 0, size, str(path))}


def error_message(path: Path, content: bytes) -> str:
    with pytest.raises(PaperbenchError) as caught:
        members(path, content)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


@pytest.mark.parametrize("form", FORMATS)
def test_members_are_where_they_are_said_to_be(form: int, tmp_path: Path) -> None:
    assert members(tmp_path / "a.tar", tar(form)) == FILES


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_directories_and_devices_are_passed_over(kind: bytes, tmp_path: Path) -> None:
    assert members(tmp_path / "a.tar", tar(tarfile.PAX_FORMAT, other(kind))) == FILES


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE])
def test_links_and_sparse_files_are_refused(kind: bytes, tmp_path: Path) -> None:
    message = error_message(tmp_path / "a.tar", tar(tarfile.GNU_FORMAT, other(kind)))
    assert "'other'" in message
    assert "--hard-dereference" in message


@pytest.mark.parametrize("form", FORMATS)
def test_truncated_archive_is_to_be_copied_again(form: int, tmp_path: Path) -> None:
    content = tar(form)
    end = content.rindex(b"5") // 512 * 512 + 512
    for length in range(0, end + 1, 256):
        message = error_message(tmp_path / "a.tar", content[:length])
        assert "truncated" in message
        assert "Copy or download it again" in message


@pytest.mark.parametrize("record", [b"11 size=-1\n", b"14 size=-1536\n", b"11 size=ab\n", b"0 path=a\n"])
def test_damaged_extended_header_ends_in_an_error(record: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    file = tarfile.TarInfo("file")
    with limit_seconds():
        message = error_message(tmp_path / "a.tar", info.tobuf() + record.ljust(512, b"\0") + file.tobuf())
    assert "Copy or download it again" in message


def test_size_beyond_8_gigabytes_is_read(tmp_path: Path) -> None:
    for form in FORMATS:
        info = tarfile.TarInfo("large")
        info.size = 2**33 + 1
        message = error_message(tmp_path / "a.tar", info.tobuf(form) + bytes(1024))
        assert f"byte {2**33 + 1 + (512 if form == tarfile.GNU_FORMAT else 1536):,}" in message


def test_inner_archive_ends_where_its_member_does(tmp_path: Path) -> None:
    inner = tar(tarfile.GNU_FORMAT)
    path = tmp_path / "a.tar"
    path.write_bytes(inner.rstrip(b"\0") + bytes(512) + tar(tarfile.GNU_FORMAT))
    end = len(inner.rstrip(b"\0")) // 512 * 512 + 512
    with open_container(path) as (read, _), pytest.raises(PaperbenchError, match="truncated"):
        list(tar_members(read, 0, end, "inner"))


@pytest.mark.parametrize("magic", [b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"])
def test_compressed_archive_is_recognised(magic: bytes, tmp_path: Path) -> None:
    assert "is compressed" in error_message(tmp_path / "a.tar", magic + bytes(range(1, 256)) * 4)


def test_header_that_claims_a_long_name_is_refused(tmp_path: Path) -> None:
    content = tar(tarfile.GNU_FORMAT, tarfile.TarInfo("x" * 2**20))
    assert "a header of 1,048,577 bytes" in error_message(tmp_path / "a.tar", content)
