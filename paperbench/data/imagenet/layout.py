"""Finds the images of ImageNet in a directory, whatever their containers, and their labels."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from paperbench.data.imagenet.containers import Entry, Member, Read, open_container, scan, tar_members
from paperbench.errors import PaperbenchError, listing
from paperbench.files import format_read_error, read_at_most

Split = Literal["train", "test"]
Kind = Literal["class folders", "original archives", "tar shards", "parquet", "compressed"]
Ranks = Mapping[str, int]
"""Labels of the classes by name."""

_SPLITS: Mapping[str, Split] = {"train": "train", "val": "test", "validation": "test"}
_ARCHIVES: Mapping[str, Split] = {"ILSVRC2012_img_train.tar": "train", "ILSVRC2012_img_val.tar": "test"}
_SHARD = re.compile(r"((?:.{0,100}[-_.])?(train|val|validation)(?:_images|[-_.](?=\d)))[\da-z_-]{0,80}\.(tar|parquet)")
_COMPRESSION = re.compile(r"\.(gz|bz2|xz|zst)$")
_IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
_COMPANION_SUFFIXES = (".cls", ".json", ".txt")
"""Of the files that go with an image in shards for the package webdataset."""
_SYNSET = re.compile(r"n\d{8}")
_NAMED = re.compile(r"^n\d{8}|(?<=_)n\d{8}(?=\.[^.]*$)")
"""A synset at the beginning of an image's name, or, as in Hugging Face's, at its end."""

_KEY = re.compile(r"ILSVRC2012_val_\d{8}|n\d{8}_\d+")
_SUFFIX = re.compile(r"\.(jpe?g|png)$", re.IGNORECASE)
_LISTS = ("ImageSets/CLS-LOC/train_cls.txt", "LOC_train_solution.csv")
"""Lists of training images, from ILSVRC and Kaggle."""
_LISTED = re.compile(rb'^"?(?:[^\s,/]{1,100}/)?([^\s,/"]{1,200})"?[ ,]', re.MULTILINE)
_MAX_LIST_BYTES = 2**28
"""Maximum size of such a list; ILSVRC's has 40 MB."""

_BASES = ("", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC", "data")
"""Where the images are in what people unpack or download."""
_MAX_SUBDIRECTORIES = 100


class FoundImage(NamedTuple):
    """An image and its place.

    Attributes:
        split: "test" is the validation set of ILSVRC 2012, on which the paper tests.
        label: Rank of the synset in alphabetical order.
        path: Container, below the root: a file with one image, or an uncompressed tar file.
        offset, length: Place in the container, in bytes.
        name: Name of the file or of the tar member, without directories.
    """

    split: Split
    label: int
    path: str
    offset: int
    length: int
    name: str


class _Source(NamedTuple):
    """The containers of a split's images: a directory, an original archive, or shards; below the root."""

    split: Split
    kind: Kind
    base: str
    title: str
    paths: tuple[str, ...]


@dataclass
class Layout:
    """What a directory holds.

    Attributes:
        title: Kinds of the containers, such as "class folders".
        foreign: Files that are neither images of the data set nor known to belong to it. Hidden ones do not count.
        missing: Training images that a list in the directory mentions, and test images of the classes that have some,
            if they were not found; and links that lead nowhere. Both lists are complete once all images have been read.
    """

    title: str
    root: Path
    _ranks: Ranks
    _sources: Sequence[_Source]
    _test_labels: Mapping[str, int]
    foreign: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def images(self) -> Iterator[FoundImage]:
        """Yield all images, container by container. Opens no image file, and reads only the headers of tar files."""
        self.foreign.clear()
        self.missing.clear()
        for source in self._sources:
            is_test, known_labels = source.split == "test", set[int]()
            unseen = set(self._test_labels) if is_test else _listed_images(self.root, source.base)
            read = {"class folders": self._folder, "original archives": self._archive, "tar shards": self._shards}
            for image in read[source.kind](source):
                key = image_key(image.name)
                self._check_label(image, key)
                if key in unseen:
                    unseen.discard(key)
                    known_labels.add(image.label)
                yield image
            if is_test:
                unseen = {key for key in unseen if self._test_labels[key] in known_labels}
            unseen.difference_update([image_key(PurePosixPath(path).name) for path in self.missing])
            self.missing += sorted(unseen)

    def _check_label(self, image: FoundImage, key: str) -> None:
        labels = [self._ranks.get(synset) for synset in _NAMED.findall(image.name)]
        if image.split == "test":
            labels.append(self._test_labels.get(key, image.label))
        if labels.count(image.label) < len(labels):
            raise PaperbenchError(
                f"{self.root / image.path}: {image.name} is an image of another synset than that of its label, "
                f"{[*self._ranks][image.label]}. Labels are ranks of the synsets in alphabetical order, and "
                "directories have the images of the synset in their name. Unpack or write the images again; or, if "
                "they are other images than ILSVRC's, or have other labels, give them other names."
            )

    def _folder(self, source: _Source) -> Iterator[FoundImage]:
        (directory,) = source.paths
        for entry in scan(self.root / directory):
            path = f"{directory}/{entry.name}"
            label = self._ranks.get(entry.name)
            if label is not None and entry.is_directory:
                for file in scan(self.root / path):
                    yield from self._file(source.split, f"{path}/{file.name}", file, label)
            elif entry.is_file and (label := self._ranks.get(entry.name.removesuffix(".tar"))) is not None:
                yield from self._archive(source._replace(paths=(path,)), label)
            else:
                yield from self._file(source.split, path, entry, self._flat_label(source.split, entry.name))

    def _flat_label(self, split: Split, name: str) -> int | None:
        named = [self._ranks[synset] for synset in _NAMED.findall(name) if synset in self._ranks]
        labels = self._test_labels if split == "test" else {}
        return labels.get(image_key(name), named[0] if named else None)

    def _file(self, split: Split, path: str, entry: Entry, label: int | None) -> Iterator[FoundImage]:
        if entry.size is None:
            self.missing.append(path)
        elif label is None or not entry.is_file or not _is_image(entry.name):
            self.foreign.append(path)
        else:
            yield FoundImage(split, label, path, 0, entry.size, entry.name)

    def _archive(self, source: _Source, label: int | None = None) -> Iterator[FoundImage]:
        """Yield the images of an archive of one class, of the classes' archives, or of flat validation images."""
        (path,) = source.paths
        title = str(self.root / path)
        with open_container(self.root / path) as (read, size):
            for member in tar_members(read, 0, size, title):
                name = PurePosixPath(member.name).name
                inner = self._ranks.get(name.removesuffix(".tar")) if name.endswith(".tar") else None
                if inner is not None:
                    end = member.offset + member.length
                    for image in tar_members(read, member.offset, end, f"{title}: {member.name}"):
                        yield from self._member(source.split, path, image, inner)
                else:
                    known = self._flat_label(source.split, name) if label is None else label
                    yield from self._member(source.split, path, member, known)

    def _shards(self, source: _Source) -> Iterator[FoundImage]:
        for path in source.paths:
            with open_container(self.root / path) as (read, size):
                members = tar_members(read, 0, size, str(self.root / path))
                for (folder, key), group in groupby(members, key=_webdataset_key):
                    files = list(group)
                    synset = PurePosixPath(folder).name
                    label = self._ranks.get(synset)
                    if label is None and not _SYNSET.fullmatch(synset) and any(_is_image(f.name) for f in files):
                        label = self._webdataset_label(read, key, files, f"{self.root / path}: {folder}{key}")
                    for file in files:
                        if not file.name.endswith(_COMPANION_SUFFIXES):
                            yield from self._member(source.split, path, file, label)

    def _member(self, split: Split, path: str, member: Member, label: int | None) -> Iterator[FoundImage]:
        name = PurePosixPath(member.name).name
        if label is not None and _is_image(name):
            yield FoundImage(split, label, path, member.offset, member.length, name)
        elif not name.startswith("."):
            self.foreign.append(f"{path}: {member.name}")

    def _webdataset_label(self, read: Read, key: str, files: Sequence[Member], title: str) -> int:
        for file in files:
            if PurePosixPath(file.name).name == f"{key}.cls":
                text = read(min(file.length, 16), file.offset).strip()
                label = int(text) if text.isdigit() else -1
                if not 0 <= label < len(self._ranks):
                    raise PaperbenchError(
                        f"{title}.cls must hold a label from 0 to {len(self._ranks) - 1}, not {text!r}. Write the "
                        "shards again."
                    )
                return label
        if (named := self._flat_label("train", f"{key}.")) is not None:
            return named
        raise PaperbenchError(
            f"{title}: the image has no label. Shards need members <synset>/<name> or <name>_<synset>.JPEG, or "
            "<key>.cls with the label beside each <key>.jpg."
        )


def _is_image(name: str) -> bool:
    return name.lower().endswith(_IMAGE_SUFFIXES) and not PurePosixPath(name).name.startswith(".")


def _webdataset_key(member: Member) -> tuple[str, str]:
    """Return directory and key; webdataset takes what follows the first dot of a name as suffix."""
    folder, slash, name = member.name.rpartition("/")
    return folder + slash, name.partition(".")[0]


def image_key(name: str) -> str:
    """Return ILSVRC's name of the image of a file: without suffix, and without what others append."""
    found = _KEY.match(name)
    return found[0] if found else _SUFFIX.sub("", name)


def _listed_images(root: Path, base: str) -> set[str]:
    """Return the names of training images in ILSVRC's or Kaggle's lists. Kaggle's are up to three levels above them."""
    directory, keys = root / base, set[str]()
    above = directory.absolute().parents[:3] if directory.absolute().name == "CLS-LOC" else ()
    for file in (place / name for place in dict.fromkeys([directory, *above, root]) for name in _LISTS):
        try:
            content = read_at_most(file, _MAX_LIST_BYTES).removeprefix(codecs.BOM_UTF8)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise PaperbenchError(format_read_error(file, error, "Check its permissions, or copy it again.")) from error
        keys.update(image_key(found[1].decode("utf-8", "replace")) for found in _LISTED.finditer(content))
    return keys - {"ImageId"}


def find_layout(root: Path, classes: Sequence[str], test_labels: Mapping[str, int]) -> Layout:
    """Return the layout of a directory, or of directories in it. The training or the test set may be absent.

    Args:
        classes: Names of the classes by label.
        test_labels: Labels of the test images by name, as `image_key` returns it.
    """
    ranks = {name: label for label, name in enumerate(classes)}
    entries = scan(root)
    found = [source for base in _BASES for source in _sources(root, base, ranks)]
    if not found:
        folders = [entry.name for entry in entries if entry.is_directory and entry.name not in ranks]
        bases = [f"{folder}/{base}" for folder in folders[:_MAX_SUBDIRECTORIES] for base in _BASES]
        found = list(chain.from_iterable(_sources(root, base, ranks) for base in bases))
    if not found:
        raise PaperbenchError(_describe_absence(root, entries, ranks))
    unpacked = {source.split for source in found if source.kind == "class folders"}
    found = [source for source in found if "_images*." not in source.title or source.split not in unpacked]
    for split, name in (("train", "training"), ("test", "validation")):
        titles = [source.title for source in found if source.split == split]
        if len(titles) > 1:
            raise PaperbenchError(
                f"{root} has {name} images in more than one place: {listing(titles)}. Move away all but one of them, "
                "or give a directory that has only one."
            )
    for source in found:
        if source.kind == "parquet":
            raise PaperbenchError(
                f"{root} has parquet files ({source.title}), from which single images cannot be read efficiently. Pack "
                f"them into tar shards once, with `paperbench data pack imagenet {root} OUT`, and give OUT instead."
            )
        if source.kind == "compressed":
            raise PaperbenchError(
                f"{root} has compressed archives ({source.title}). Decompress them to .tar files, in which images are "
                "read in place."
            )
    found.sort(key=lambda source: source.split, reverse=True)
    title = " and ".join(dict.fromkeys(source.kind for source in found))
    return Layout(title, root, ranks, found, test_labels)


def original_layout(root: Path, classes: Sequence[str], test_labels: Mapping[str, int]) -> Layout:
    """Return the layout of the original archives in a directory, whatever else it has."""
    kind: Kind = "original archives"
    sources = [_Source(split, kind, "", name, (name,)) for name, split in _ARCHIVES.items()]
    return Layout(kind, root, {name: label for label, name in enumerate(classes)}, sources, test_labels)


def _sources(root: Path, base: str, ranks: Ranks) -> Iterator[_Source]:
    directory = root / base
    if not (os.access(directory, os.R_OK | os.X_OK) and directory.is_dir()):
        return
    shards: dict[tuple[Split, str, str], list[str]] = {}
    for entry in scan(directory):
        name, compressions = _COMPRESSION.subn("", entry.name)
        path = str(PurePosixPath(base, entry.name))
        if entry.is_directory and (split := _SPLITS.get(entry.name)):
            names = [file.name for file in scan(root / path)]
            known = [synset for synset in (name.removesuffix(".tar") for name in names) if synset in ranks]
            if twice := [synset for synset, following in pairwise(sorted(known)) if synset == following]:
                raise PaperbenchError(
                    f"{root / path} has {listing(twice)} both as a directory and as an archive. Move one of them away."
                )
            if known or any(_is_image(name) and (split == "test" or _NAMED.search(name)) for name in names):
                yield _Source(split, "class folders", base, f"{path}/", (path,))
        elif not entry.is_directory and (split := _ARCHIVES.get(name)):
            yield _Source(split, "compressed" if compressions else "original archives", base, path, (path,))
        elif not entry.is_directory and (found := _SHARD.fullmatch(name)):
            extension = found[3] + entry.name.removeprefix(name)
            shards.setdefault((_SPLITS[found[2]], found[1], extension), []).append(path)
    for (split, prefix, extension), paths in shards.items():
        kinds: Mapping[str, Kind] = {"tar": "tar shards", "parquet": "parquet"}
        title = str(PurePosixPath(base, f"{prefix}*.{extension}"))
        yield _Source(split, kinds.get(extension, "compressed"), base, title, tuple(paths))


def _describe_absence(root: Path, entries: Sequence[Entry], ranks: Ranks) -> str:
    if any(entry.name.removesuffix(".tar") in ranks or _is_image(entry.name) for entry in entries):
        parent = f", such as {root.absolute().parent}" if root.absolute().name in _SPLITS else ""
        return (
            f"{root} is the training or validation set alone, or part of it. Give the directory that has both, in "
            f"train/ and val/{parent}."
        )
    for split in (entry.name for entry in entries if entry.is_directory and entry.name in _SPLITS):
        if names := [entry.name for entry in scan(root / split) if entry.is_directory]:
            return (
                f"{root / split} has no directory named after a synset of ImageNet, such as {min(ranks)}, but "
                f"{listing(names[:3])}. Name the directories of ImageNet's classes so; other classes cannot be indexed."
            )
    return (
        f"{root} has no images of ImageNet in a known layout. Give a directory with one of these:\n"
        "  - train/<synset>/ and val/<synset>/ with image files; or train/ and val/ with <name>_<synset>.JPEG\n"
        "  - Kaggle's files\n"
        f"  - the archives {' and '.join(_ARCHIVES)}\n"
        "  - tar shards such as train-00000.tar and val-00000.tar\n"
        "  - Hugging Face's parquet files, for `paperbench data pack imagenet DIR OUT`"
    )
