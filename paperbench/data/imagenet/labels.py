"""Labels of ILSVRC's validation images, which are files without classes: Kaggle's list, or the development kit."""

from __future__ import annotations

import codecs
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from paperbench.data.imagenet.containers import tar_members
from paperbench.errors import PaperbenchError
from paperbench.files import format_read_error, read_at_most

SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
_META, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"

_MAX_LIST_BYTES = 2**28
"""Maximum size of a list of images; that of the training images has 40 MB."""
_MAX_DEVKIT_BYTES = 2**26
"""Maximum size of a file of the development kit, which has 2.5 MB, and of everything in it."""
_MAX_META_BYTES = 2**24
"""Maximum size of the variables of `meta.mat`, which have some 3 MB."""
_LISTS = {
    "train": ("ImageSets/CLS-LOC/train_cls.txt", "LOC_train_solution.csv"),
    "test": ("ImageSets/CLS-LOC/val.txt", SOLUTION),
}
_LISTED = re.compile(rb'^"?(?:[^\s,/]{1,100}/)?([^\s,/"]{1,200})"?[ ,]', re.MULTILINE)
_NO_HEADER = re.compile(r"(?:n|ILSVRC2012_val_)\d{8}")
_KEY = re.compile(r"ILSVRC2012_val_\d{8}|n\d{8}_\d+")
_SUFFIX = re.compile(r"\.(jpe?g|png)$", re.IGNORECASE)


def image_key(name: str) -> str:
    """Return the name that the lists give to the image of a file: without suffix, and without what others append."""
    found = _KEY.match(name)
    return found[0] if found else _SUFFIX.sub("", name)


def listed_images(places: Iterable[Path], split: str) -> set[str]:
    """Return the names of the images that ILSVRC's or Kaggle's lists have, if the lists are there.

    Args:
        places: Directories where they may be.
    """
    keys: set[str] = set()
    for place in places:
        for name in _LISTS[split]:
            content = _read(place / name, _MAX_LIST_BYTES) or b""
            keys.update(image_key(found[1].decode("utf-8", "replace")) for found in _LISTED.finditer(content))
    return keys - {"ImageId"}


def find_labels(places: Iterable[Path], ranks: Mapping[str, int]) -> dict[str, int] | None:
    """Return the labels of the validation images by name, if one of the directories has them.

    Args:
        places: Directories where Kaggle's list or the development kit may be.
        ranks: Labels of the classes by name.
    """
    for place in places:
        solution, kit, archive = place / SOLUTION, place / DEVKIT, place / f"{DEVKIT}.tar.gz"
        if (content := _read(solution, _MAX_LIST_BYTES)) is not None:
            return _solution_labels(content, ranks, solution)
        if kit.is_dir():
            files = {name: _read(kit / name, _MAX_DEVKIT_BYTES) for name in (_META, _TRUTH)}
            return _devkit_labels(files, ranks, kit)
        if (content := _read(archive, _MAX_DEVKIT_BYTES)) is not None:
            return _devkit_labels(_unpack(content, archive), ranks, archive)
    return None


def _read(file: Path, limit: int) -> bytes | None:
    try:
        return read_at_most(file, limit).removeprefix(codecs.BOM_UTF8)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PaperbenchError(format_read_error(file, error, "Check its permissions, or copy it again.")) from error


def _solution_labels(content: bytes, ranks: Mapping[str, int], file: Path) -> dict[str, int]:
    labels = {}
    for number, line in enumerate(content.decode("utf-8", "replace").replace('"', "").lstrip().splitlines(), 1):
        name, _, boxes = line.partition(",")
        if line.strip() and (number > 1 or _NO_HEADER.search(line)):
            try:
                labels[image_key(name)] = ranks[boxes.split(maxsplit=1)[0]]
            except (KeyError, IndexError) as error:
                raise _damaged(file, f"line {number} names no known class: {line!r:.100}") from error
    return labels


def _devkit_labels(files: Mapping[str, bytes | None], ranks: Mapping[str, int], kit: Path) -> dict[str, int]:
    """Return the labels by name. The kit numbers classes in an order of its own, which `meta.mat` maps to synsets."""
    for name in (_META, _TRUTH):
        if files.get(name) is None:
            raise _damaged(kit, f"{name} is missing")
    try:
        synsets = _read_synsets(files[_META] or b"")
    except (ValueError, LookupError, ArithmeticError, StopIteration, struct.error, zlib.error) as error:
        raise _damaged(kit, f"{_META}: {error or type(error).__name__}") from error
    labels = {}
    for number, line in enumerate((files[_TRUTH] or b"").split(), 1):
        label = ranks.get(synsets.get(line, ""))
        if label is None:
            raise _damaged(kit, f"{_TRUTH}, line {number}: {line!r:.100} is the number of no known class in {_META}")
        labels[f"ILSVRC2012_val_{number:08}"] = label
    return labels


def _damaged(file: Path, reason: str) -> PaperbenchError:
    return PaperbenchError(f"{file} is damaged: {reason:.300}. Download it again.")


def _unpack(archive: bytes, file: Path) -> dict[str, bytes]:
    """Return the files of the archive by name, without the name of the archive's directory."""
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(archive, _MAX_DEVKIT_BYTES)
    except zlib.error as error:
        raise _damaged(file, str(error)) from error
    if not stream.eof:
        raise _damaged(file, "it is truncated, or larger than the original")
    members = tar_members(lambda length, offset: content[offset : offset + length], 0, len(content), str(file))
    return {name.rpartition(f"{DEVKIT}/")[2]: content[at : at + length] for name, at, length in members}


_COMPRESSED, _MATRIX = 15, 14
_STRUCTURES, _TEXT = 2, 4
_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8"}
_MAX_NAMES_BYTES = 2**12


def _read_synsets(content: bytes) -> dict[bytes, str]:
    """Return the synsets by number, from the array of structures in a MATLAB file of version 5.

    scipy's `loadmat` would allocate as much memory as the file claims to need.
    """
    if content[124:128] != b"\x00\x01IM":
        raise ValueError("not a MATLAB file of version 5")
    budget = _MAX_META_BYTES
    for kind, variable in _elements(content[128:]):
        if kind == _COMPRESSED:
            variable = zlib.decompressobj().decompress(variable, budget)
            budget -= len(variable)
            if not budget:
                raise ValueError("it is larger than the original")
            kind, variable = next(_elements(variable))
        if kind == _MATRIX:
            parts = (part for _, part in _elements(variable))
            flags, _, name = islice(parts, 3)
            if flags[:1] == bytes([_STRUCTURES]) and name == b"synsets":
                width, names = int.from_bytes(next(parts), "little"), next(parts)[:_MAX_NAMES_BYTES]
                fields = [names[at : at + width].rstrip(b"\0") for at in range(0, len(names), width)]
                number, synset = fields.index(b"ILSVRC2012_ID"), fields.index(b"WNID")
                synsets = {}
                while values := list(islice(parts, len(fields))):
                    synsets[b"%d" % int(_scalar(values[number]))] = str(_scalar(values[synset]))
                return synsets
    raise ValueError("it has no synsets")


def _scalar(matrix: bytes) -> str | float:
    (_, flags), _, _, (kind, data) = islice(_elements(matrix), 4)
    if flags[:1] == bytes([_TEXT]):
        return data.decode("utf-16-le" if kind == 4 else "utf-8")
    return float(np.frombuffer(data, _NUMBERS[kind])[0])


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and contents of the elements in a row."""
    position = 0
    while position < len(content):
        kind, size = struct.unpack_from("<II", content, position)
        start = position + 8
        if kind >> 16:  # at most four bytes, in place of the size
            kind, size, start = kind & 0xFFFF, kind >> 16, position + 4
        if start + size > len(content):
            raise ValueError("it is truncated")
        yield kind, content[start : start + size]
        position = max(start + size, position + 8)
        if kind != _COMPRESSED:
            position += -position % 8
