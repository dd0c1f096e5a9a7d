"""Makes the index of a directory of images: reads and decodes each of them once, and goes on after an interruption."""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from paperbench.catalogue import DATASETS
from paperbench.data.imagenet.containers import open_container, read_image
from paperbench.data.imagenet.crew import in_threads
from paperbench.data.imagenet.decode import ImageError, decode
from paperbench.data.imagenet.index import fingerprint
from paperbench.data.imagenet.index_file import (
    FILE_NAME,
    MAX_BYTES,
    SCHEMA,
    Header,
    Images,
    Index,
    Place,
    Row,
    check,
    is_forged,
    open_database,
    primary_code,
    read_images,
    read_index,
)
from paperbench.data.imagenet.layout import FoundImage, Layout, find_layout, original_layout
from paperbench.data.imagenet.synsets import synsets, validation_labels
from paperbench.errors import PaperbenchError, listing, one_line
from paperbench.files import report_write_errors
from paperbench.streams import watched
from paperbench.typed import to_json

PARTIAL = ".partial"
"""Suffix of an index that is being made."""
_SECONDS_BETWEEN_COMMITS = 1.0
_SAMPLED = 51
"""How many images of a set are decoded to know their size."""
_MD5 = {
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
    "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
}


@dataclass(frozen=True)
class Published:
    """What is known of ImageNet without having it.

    Attributes:
        train, test: Numbers of images.
        test_labels: Labels of the test images by the names of their files, without suffix.
        shorter_side: Smallest plausible median of the images' shorter sides, in pixels; below it, they are reduced.
        md5: md5 sums of the original archives by name.
    """

    classes: Sequence[str] = field(default_factory=synsets)
    train: int = DATASETS["imagenet"].train_images
    test: int = DATASETS["imagenet"].test_images
    test_labels: Mapping[str, int] = field(default_factory=validation_labels)
    shorter_side: int = 300
    md5: Mapping[str, str] = field(default_factory=lambda: _MD5)


class ImagesError(PaperbenchError):
    """The images of a directory are not those of ImageNet, or some cannot be used."""


def index_images(
    root: Path,
    data: Path,
    stream: TextIO,
    *,
    threads: int,
    archives: Path | None = None,
    accepts_subset: bool = False,
    published: Published | None = None,
) -> Index:
    """Index a directory of images, and write the index.

    Images that an earlier call has read, and whose files have not changed since, are not read again, even if that call
    was killed.

    Args:
        root: Directory of the images.
        data: Data directory, in which the index will be.
        stream: Where to print progress and notes.
        threads: Number of images read and decoded at once.
        archives: Directory of the original archives, to prove that the images are the original ones.
        accepts_subset: Whether images may be missing.
        published: What the images must be; by default ImageNet.
    """
    published, path = published or Published(), data / FILE_NAME
    for directory in (root, archives):
        if directory is not None and not directory.is_dir():
            raise PaperbenchError(f"{directory} is not a directory. Name the one that holds ImageNet's images.")
    if archives is not None:
        if accepts_subset:
            raise PaperbenchError("`--archives` proves complete images. Give it without `--subset`.")
        _check_md5(archives, published, stream)
    of_archives = archives is not None and archives.samefile(root)
    layout = (original_layout if of_archives else find_layout)(root, published.classes, published.test_labels)
    with _partial(path) as partial:
        total = None if accepts_subset else published.train + published.test
        rows, unusable = _collect(layout, partial, stream, threads, total=total)
        foreign = listed("files that are not ImageNet's", layout.foreign)
        if not unusable and not rows:
            raise ImagesError("\n".join([f"{root} has no images of ImageNet in its {layout.title}.", *foreign]))
        problems, missing = listed("unusable images", unusable), listed("missing images", layout.missing)
        images = partial.only(rows, root) if rows else None
        lacking = _lacking(images, published) if images else []
        reduced = _reduced(images, published) if images else []
        if not accepts_subset:
            problems += missing + lacking + reduced
        elif images:
            problems += _unmatched(images, published)
        if problems or images is None:
            hint = "" if unusable else " Accept what is there, as a subset, with `--subset`."
            if accepts_subset and not unusable:
                hint = " To test nets alone, index a directory without training images."
            if foreign:
                hint = (
                    f" Test images without a class directory need ILSVRC's names: ILSVRC2012_val_00000001.JPEG.{hint}"
                )
            remedy = f"Repair this, then repeat the command: it reads only what has changed.{hint}"
            raise ImagesError("\n".join([f"{root}:", *problems, *foreign, remedy]))
        for note in missing + foreign + reduced:
            print(f"paperbench: {note}", file=stream, flush=True)
        header = Header(
            schema="paperbench.imagenet/2",
            layout=layout.title,
            fingerprint=fingerprint(images.train, images.test),
            is_complete=not (lacking or reduced),
            proven=partial.proven,
        )
        try:
            if archives is not None:
                if not of_archives:
                    originals = original_layout(archives, published.classes, published.test_labels)
                    _compare(rows, originals, data, stream, threads)
                header = replace(header, proven=header.fingerprint)
        finally:
            partial.finish(_root(root, data), header)
    return Index(data, header, images)


def _root(root: Path, data: Path) -> Path:
    """Return the root as indices have it: relative if it is in the data directory."""
    root, data = root.absolute(), data.absolute()  # links stay links
    return root.relative_to(data) if root.is_relative_to(data) else root


@dataclass(frozen=True)
class _Partial:
    """An index that is being made.

    Attributes:
        known: sha256 of images by place, from an earlier index and an interrupted call.
        proven: The fingerprint that was proven for the earlier index.
    """

    path: Path
    known: dict[Place, bytes]
    proven: str | None
    _database: sqlite3.Connection

    def add(self, rows: Iterable[Row]) -> None:
        with _reported(self.path), self._database:
            self._database.executemany("INSERT INTO image VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def only(self, rows: Iterable[Row], root: Path) -> Images:
        """Leave only these rows, and return the images."""
        with _reported(self.path), self._database:
            self._database.execute("DELETE FROM header")
            self._database.execute("DELETE FROM image")
            self.add(sorted(rows))
            return read_images(self._database, root)

    def finish(self, root: Path, header: Header) -> None:
        """Put the database in the place of the earlier index."""
        with _reported(self.path), self._database:
            self._database.execute("INSERT INTO header VALUES (?, ?)", (os.fsencode(root), to_json(header)))
        with _reported(self.path):
            self.path.replace(self.path.with_suffix(""))


@contextmanager
def _partial(path: Path) -> Iterator[_Partial]:
    """Open the database of an index that is being made, and lock it; keep it until it is finished."""
    import fcntl  # which Windows lacks

    partial = path.with_name(path.name + PARTIAL)
    with _reported(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    try:
        with _reported(partial):
            status = os.fstat(lock)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise OSError("it is no file of paperbench's; delete it")
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):  # by Lustre, without its option
                        raise
                is_locked = os.path.samestat(status, partial.stat())
            except (BlockingIOError, FileNotFoundError):  # the other one has just ended
                is_locked = False
        if not is_locked:
            raise PaperbenchError(f"Another process is making {path}. Wait until it has ended, or end it.")
        known, proven = dict[Place, bytes](), None
        with suppress(PaperbenchError, FileNotFoundError):
            earlier = read_index(path)
            known, proven = earlier.images.known(), earlier.header.proven
        with _reported(partial):
            if is_forged(journal := partial.with_name(f"{partial.name}-journal")):
                journal.unlink()
            database = open_database(partial, "nolock=1")
            try:
                check(database, partial)
                if database.execute("PRAGMA quick_check(1)").fetchall() != [(b"ok",)]:
                    raise ValueError("its pages are damaged")
                known |= read_images(database, path.parent).known()
            except (ValueError, sqlite3.DatabaseError) as error:
                database.close()
                if primary_code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
                    raise
                os.truncate(lock, 0)  # it is new, damaged or by an earlier version
                database = open_database(partial, "nolock=1")
                for statement in SCHEMA.values():
                    database.execute(statement)
        with closing(database):
            database.set_progress_handler(None, 0)
            yield _Partial(partial, known, proven, database)
    finally:
        os.close(lock)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn errors of writing a database into a PaperbenchError."""
    with report_write_errors(path, "--data DIR"):
        try:
            yield
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error


def _collect(
    layout: Layout, partial: _Partial, stream: TextIO, threads: int, *, total: int | None = None, decodes: bool = True
) -> tuple[list[Row], list[str]]:
    """Hash all images of a layout that are not known yet, and write their rows every second.

    Args:
        total: Their number, if it is known.
        decodes: Whether to decode them, too, so that damaged ones are found.

    Returns:
        The rows of all usable images, and the names of the others with the reasons.
    """
    rows, new, unusable = [], list[Row](), list[str]()
    committed = time.monotonic()

    def examine(image: FoundImage) -> tuple[Row, bool] | str:
        path = layout.root / image.path
        try:
            status = path.stat()
            times = status.st_mtime_ns // 10**9  # a copy with `tar` keeps no more
            place = os.fsencode(image.path), image.offset, image.length, status.st_size, times
            if is_new := (sha256 := partial.known.pop(place, None)) is None:
                data = read_image(path, image.offset, image.length)
                if len(data) < image.length:  # it was cut off since it was found
                    raise ImageError("is cut off")
                if decodes:
                    decode(data)
                sha256 = hashlib.sha256(data).digest()
        except ImageError as error:
            return f"{image.path}{'' if image.path.endswith(image.name) else f' ({image.name})'} {error}"
        except OSError as error:
            return f"{image.path} cannot be read: {error.strerror or error}"
        return Row(image.split == "train", image.label, sha256, *place), is_new

    try:
        examined = in_threads(examine, layout.images(), threads)
        for one in watched(examined, stream, f"indexing {layout.title}", "images", total=total):
            if isinstance(one, str):
                unusable.append(one)
                continue
            row, is_new = one
            rows.append(row)
            if is_new:
                new.append(row)
            if time.monotonic() - committed >= _SECONDS_BETWEEN_COMMITS:
                partial.add(new)
                new, committed = [], time.monotonic()
    finally:
        partial.add(new)
    return rows, unusable


def listed(what: str, names: Sequence[str]) -> list[str]:
    """Return a line that names the first problems of a kind, if there are any."""
    return [f"{what} ({len(names):,}): {listing([one_line(name) for name in names])}"] if names else []


def _lacking(images: Images, published: Published) -> list[str]:
    """Return what is wrong with the numbers of images; nothing if they are those of ImageNet."""
    train, test = (np.bincount(part.labels, minlength=len(published.classes)) for part in (images.train, images.test))
    lacking, per_class = [], published.test // len(published.classes)
    numbers = int(train.sum()), int(test.sum())
    if numbers != (published.train, published.test):
        lacking.append(
            f"it has {numbers[0]:,} + {numbers[1]:,} images; ImageNet has {published.train:,} to train on and "
            f"{published.test:,} to test"
        )
    of_classes = [*zip(published.classes, train.tolist(), test.tolist(), strict=True)]
    untrained = [name for name, number, _ in of_classes if not number]
    untested = [f"{name} has {number}" for name, _, number in of_classes if number != per_class]
    lacking += listed("classes without training images", untrained)
    return lacking + listed(f"classes without {per_class} test images", untested)


def _unmatched(images: Images, published: Published) -> list[str]:
    """Return which classes only one part has. There may be test images alone, to test nets on."""
    train, test = ({published.classes[label] for label in part.labels.tolist()} for part in (images.train, images.test))
    untrained = listed("classes without training images", sorted(test - train)) if train else []
    return untrained + listed("classes without test images", sorted(train - test))


def _reduced(images: Images, published: Published) -> list[str]:
    """Return whether images for training or testing are reduced copies of ImageNet's, judged by some of them."""
    reduced = []
    for name, files in (("training", images.train), ("test", images.test)):
        chosen = np.unique(np.linspace(0, len(files) - 1, min(len(files), _SAMPLED)).astype(int)).tolist()
        sides = [min(decode(files.read(number)).size) for number in chosen]
        if sides and (median := int(np.median(sides))) < published.shorter_side:
            reduced.append(
                f"half of the {name} images have a shorter side of {median} pixels or fewer, not 375 as in ImageNet: "
                "these are reduced copies"
            )
    return reduced


def _check_md5(archives: Path, published: Published, stream: TextIO) -> None:
    """Compare the original archives with their md5 sums."""
    if absent := [name for name in published.md5 if not (archives / name).is_file()]:
        raise PaperbenchError(f"{archives} lacks {listing(absent)}. `--archives` needs all original archives.")
    for name, md5 in published.md5.items():
        digest, path = hashlib.md5(usedforsecurity=False), archives / name
        with open_container(path) as (read, size):
            parts = (read(2**20, offset) for offset in range(0, size, 2**20))
            for part in watched(parts, stream, f"checking {name}", "bytes", len, total=size):
                digest.update(part)
        if digest.hexdigest() != md5:
            raise ImagesError(f"{path} is not the original archive: its md5 is {digest.hexdigest()}, not {md5}.")


def _compare(rows: Sequence[Row], originals: Layout, data: Path, stream: TextIO, threads: int) -> None:
    """Compare the images with those of the archives."""
    with _partial(data / "imagenet.archives") as partial:
        original, unreadable = _collect(originals, partial, stream, threads, total=len(rows), decodes=False)
        if unreadable:
            raise ImagesError(*listed("unreadable images", unreadable))
        keys = Counter(row.key for row in original)
        keys.subtract(row.key for row in rows)
        other = sorted(os.fsdecode(row.path) for row in rows if keys[row.key] < 0)
        if other:
            (difference,) = listed("images that differ from those of the archives", other)
            raise ImagesError(f"{difference}\nThe index is kept, but not as that of the original images.")
        with _reported(partial.path):
            partial.path.unlink()


def changed_containers(index: Index, stream: TextIO) -> list[str]:
    """Return the containers that are missing, or have changed since they were indexed, by size and time of change."""
    images, changed = index.images, list[str]()
    if not os.access(images.files.root, os.X_OK):
        return [f"{images.files.root}, the directory of all images"]
    _, first = np.unique(images.files.container, return_index=True)
    rows = zip(images.size[first].tolist(), images.modified[first].tolist(), images.files.paths, strict=True)
    for size, mtime, path in watched(rows, stream, "checking", "files"):
        try:
            status = (images.files.root / path).stat()
        except OSError as error:
            changed.append(f"{path}: {error.strerror or error}")
        else:
            if (status.st_size, status.st_mtime_ns // 10**9) != (size, mtime):
                changed.append(f"{path} has changed")
    return changed
