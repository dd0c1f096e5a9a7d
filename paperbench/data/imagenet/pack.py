"""Packing of Hugging Face's parquet files into tar files, from which an image can be read without its neighbours."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

from paperbench.errors import PaperbenchError, listing, summarize_error
from paperbench.files import UNGUARDED, is_leftover, list_directory, open_regular, report_write_errors
from paperbench.streams import watched

_NAME = re.compile(r"((train|val(?:idation)?)-\d{5}-of-(\d{5}))(?:-[0-9a-f]{1,64})?\.parquet")
_COLUMNS = {"image.bytes": "BYTE_ARRAY", "image.path": "BYTE_ARRAY", "label": "INT64"}
"""The columns of Hugging Face's files, and their types."""
_MAX_FILE_BYTES = 2**40
_SYNSET = re.compile(r"(?<![A-Za-z0-9])n\d{8}(?!\d)")


def pack(source: Path, target: Path, classes: Sequence[str], stream: TextIO) -> tuple[int, int]:
    """Write a tar file for each parquet file, with the members `SYNSET/NAME.JPEG` and the images' bytes unchanged.

    Tar files that an earlier call has finished are kept. Equal parquet files give equal tar files.

    Args:
        source: Directory of `train-*-of-*.parquet` and `validation-*-of-*.parquet`, or its parent, if it is `data`.
        target: Directory of the tar files; created if it does not exist.
        classes: The synsets by label.

    Returns:
        The numbers of images to train on and to test.
    """
    files = _find_files(source)
    rows = {}
    for path in files:
        with _opened(path) as file:
            rows[path] = file.metadata.num_rows
    shards = {path: target / f"{shard}.tar" for path, shard in files.items()}
    with report_write_errors(target, "OUT"):
        target.mkdir(parents=True, exist_ok=True)
        for leftover in filter(is_leftover, list_directory(target)):
            leftover.unlink()
        done = {path for path, shard in shards.items() if shard.exists()}
        needed, free = sum(path.stat().st_size for path in files if path not in done), shutil.disk_usage(target).free
    if needed > free:
        raise PaperbenchError(
            f"The shards need about {needed / 1e9:.1f} GB in {target}, which has {free / 1e9:.1f} GB left. Free some "
            "space, or choose another directory."
        )
    missing, packed = [path for path in files if path not in done], sum(rows[path] for path in done)
    total = sum(rows.values())
    for path in watched(missing, stream, "packing", "images", rows.__getitem__, done=packed, total=total):
        UNGUARDED.write(shards[path], _tar(_images(path, classes)), "OUT")
    train = sum(count for path, count in rows.items() if path.name.startswith("train"))
    return train, total - train


def _find_files(source: Path) -> dict[Path, str]:
    """Return the files in order, and the names of their shards."""
    for directory in (source, source / "data"):
        matches = [(match, path) for path in list_directory(directory) if (match := _NAME.fullmatch(path.name))]
        if matches:
            break
    found, expected = {match[1]: path for match, path in matches}, list[str]()
    for split in ("train", "val"):
        names = [match[1] for match, _ in matches if match[2].startswith(split)]
        sets = {match.group(2, 3) for match, _ in matches if match[2].startswith(split)}
        if len(sets) != 1 or len({*names}) < len(names):
            raise PaperbenchError(
                f"{directory if found else source} has {'two sets of' if names else 'no'} files "
                f"{split}*-of-*.parquet. Give the directory of one download of ImageNet from Hugging Face."
            )
        expected += [f"{name}-{number:05}-of-{total}" for name, total in sets for number in range(int(total))]
    if missing := [f"{name}.parquet" for name in expected if name not in found]:
        raise PaperbenchError(f"{directory} is incomplete. Download the missing files: {listing(missing)}.")
    return {found[name]: name.replace("validation", "val") for name in expected}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a parquet file that has the right columns. The body can allocate little more memory than its size."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise PaperbenchError(
            f"pyarrow, which reads parquet files, cannot be imported ({summarize_error(error)}). Install it with "
            "`pip install pyarrow`."
        ) from error
    try:
        with open_regular(path, _MAX_FILE_BYTES) as stream, _little_memory(4 * path.stat().st_size + 2**28):
            file = ParquetFile(stream, buffer_size=2**16)
            columns = {column.path: column.physical_type for column in map(file.schema.column, range(len(file.schema)))}
            if not _COLUMNS.items() <= columns.items():
                raise PaperbenchError(
                    f"{path} must have the columns {_listed(_COLUMNS)}, as on Hugging Face. It has "
                    f"{_listed(columns) or 'none'}. Choose the directory of ImageNet's files."
                )
            yield file
    except PaperbenchError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise PaperbenchError(f"{path} cannot be read ({summarize_error(error)}). Download it again.") from error


@contextmanager
def _little_memory(size: int) -> Iterator[None]:
    """Let the process allocate only so much more, on Linux: a part of a parquet file can unpack to any size."""
    import resource  # which Windows lacks

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # no Linux, or a hard limit that is lower already
        allocated = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (allocated + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _listed(columns: Mapping[str, str]) -> str:
    return listing([f"{name:.100} ({kind})" for name, kind in columns.items()])


def _images(path: Path, classes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of the images of a parquet file. Holds a row group in memory."""
    names: set[str] = set()
    with _opened(path) as file:
        number, size, limit = -1, 0, 2 * path.stat().st_size + 2**20
        for number, row in enumerate(_rows(file)):
            image, label = row["image"] or {}, row["label"]
            data, origin = image.get("bytes"), image.get("path") or ""
            if not data or not isinstance(data, bytes):
                raise PaperbenchError(f"{path}: row {number} has no image. Download the file again.")
            if label is None or not 0 <= label < len(classes):
                raise PaperbenchError(
                    f"{path}: row {number} has the label {label}; ImageNet has 0 to {len(classes) - 1}. Download "
                    "the file again, or choose the directory of ImageNet's files."
                )
            synset = classes[label]
            if set(_SYNSET.findall(origin)) - {synset}:
                raise PaperbenchError(
                    f"{path}: row {number} has the label of {synset}, but its path is {origin:.200}. In ImageNet from "
                    "Hugging Face, labels count the synsets in alphabetical order."
                )
            size += tarfile.BLOCKSIZE + len(data)
            if size > limit:  # a small file can repeat an image without end
                raise PaperbenchError(f"{path} has far more images than its size allows. Download it again.")
            stem = re.sub(r"[^A-Za-z0-9-]", "_", PurePosixPath(origin[-80:]).stem).removesuffix(f"_{synset}")
            if not stem or stem in names:
                stem = f"{path.stem}_{number:05}"
            names.add(stem)
            yield f"{synset}/{stem}.JPEG", data
        if number + 1 != file.metadata.num_rows:
            raise PaperbenchError(
                f"{path} has only {number + 1:,} of {file.metadata.num_rows:,} rows. Download it again."
            )


def _rows(file: Any) -> Iterator[dict[str, Any]]:
    for group in range(file.num_row_groups):  # one by one, as iter_batches keeps all those that it is given in memory
        for batch in file.iter_batches(1, row_groups=[group], columns=[*_COLUMNS], use_threads=False):
            yield from batch.to_pylist()


def _tar(images: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield the parts of a tar file, the same whenever and by whomever it is written."""
    for name, data in images:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        yield member.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)
