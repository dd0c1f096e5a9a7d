"""Finds the images of ImageNet in a directory, whatever their containers, and their labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple


class FoundImage(NamedTuple):
    """An image and its place.

    Attributes:
        split: "test" is the validation set of ILSVRC 2012, on which the paper tests.
        label: Rank of the synset in alphabetical order.
        path: Container, below the root: a file with one image, or an uncompressed tar file.
        offset, length: Place in the container, in bytes.
        name: Name of the file or of the tar member, for messages and lists of expected files.
    """

    split: Literal["train", "test"]
    label: int
    path: str
    offset: int
    length: int
    name: str


@dataclass
class Layout:
    """What a directory holds.

    Attributes:
        title: Kind of the containers, such as "class folders".
        foreign: Files that are neither images of the data set nor known to belong to it.
        missing: Names of images that a list in the directory mentions, but that were not found; complete once all
            images have been read.
    """

    title: str
    foreign: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def images(self) -> Iterator[FoundImage]:
        """Yield all images, container by container. Opens no image file, and reads only the headers of tar files.

        Raises:
            PaperbenchError: A container is damaged or cannot be read, or an image has no label.
        """
        raise NotImplementedError


def find_layout(root: Path, classes: Sequence[str]) -> Layout:
    """Return the layout of a directory.

    Args:
        classes: Names of the classes by label.

    Raises:
        PaperbenchError: The directory cannot be read, or holds no known layout.
    """
    raise NotImplementedError
