"""Nets of the user's own: a function that makes one, named by a table.

Digests and comparison need the function's name, its arguments and the text of its file, so nothing here imports it.
`paperbench.models.building` does, for the commands that need the net.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from paperbench.catalogue.nets import Net
from paperbench.errors import PaperbenchError
from paperbench.files import read_at_most
from paperbench.typed import typed

MAX_CODE_BYTES = 10**7

_FUNCTION = re.compile(r"(?P<file>[^:\\]+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")

_files: dict[tuple[str, str, str], Path] = {}
"""The files of the functions that tables of this process call, by function, code and arguments. No others are run."""


@typed
class OwnNet:
    """A net that a function of the user's makes.

    Attributes:
        function: "package.module:function", or "path/to/file.py:function" from the directory of the tables.
        code: sha256 of the text of its file.
        arguments: What the function gets besides `num_classes`, as JSON values.
        num_classes: Outputs, one logit per class.
        size: Side of the images in pixels.
    """

    function: str
    code: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    arguments: dict[str, Any]
    num_classes: Annotated[int, Field(ge=1, le=1_000_000)]
    size: Annotated[int, Field(ge=1, le=10_000)]

    in_chans: ClassVar[int] = 3

    def __hash__(self) -> int:
        return hash((self.function, self.code, self.num_classes, self.size))

    def canonical(self) -> dict[str, Any]:
        """Return the fields as JSON values, for specs and digests. An argument that is None is one, too."""
        return {**vars(self), "arguments": dict(self.arguments)}

    @property
    def depth(self) -> int | None:
        """Its argument of this name, which profiles may set, if it is a whole number."""
        depth = self.arguments.get("depth")
        return depth if isinstance(depth, int) else None

    @property
    def family(self) -> str:
        """What its speed is measured for: the function alone."""
        return self.function

    @property
    def is_at_hand(self) -> bool:
        """Whether a table that this process has read calls its function, with this code and these arguments."""
        return self._key in _files

    @property
    def _key(self) -> tuple[str, str, str]:
        return self.function, self.code, json.dumps(self.arguments, sort_keys=True)

    @property
    def file(self) -> Path:
        """The file of its function. Records call functions, too, but only what a table calls is run."""
        if self.is_at_hand:
            return _files[self._key]
        raise PaperbenchError(
            f"{self.function} is code of a user's table, and no table here calls it as it was. Name the directory of "
            "that table with --tables."
        )


AnyNet = Net | OwnNet


def is_function(name: str) -> bool:
    """Whether a net's name is that of a function."""
    return ":" in name


def own_net(function: str, arguments: Mapping[str, Any], num_classes: int, size: int, root: Path) -> OwnNet:
    """Return the net that a function makes, and let this process run the function.

    Args:
        root: Directory from which the function's file is named.
    """
    file = find_file(function, root)
    net = OwnNet(function, code_of(file), dict(arguments), num_classes, size)
    _files[net._key] = file.resolve()
    return net


def code_of(file: Path) -> str:
    """Return the sha256 of a file's text, whatever its line ends."""
    try:
        return hashlib.sha256(read_at_most(file, MAX_CODE_BYTES).replace(b"\r\n", b"\n")).hexdigest()
    except OSError as error:
        raise PaperbenchError(f"{file} cannot be read ({error.strerror}).") from error


def find_file(function: str, root: Path) -> Path:
    """Return the file of a function, or of its module, without importing it or the packages around it."""
    if not (parts := _FUNCTION.fullmatch(function)):
        raise PaperbenchError(
            f"{function!r} does not name a function. Write path/to/file.py:function or package.module:function."
        )
    where = parts["file"]
    if where.endswith(".py"):
        if (file := root / where).is_file():
            return file
        raise PaperbenchError(f"{function}: there is no file {where} in {root}.")
    path: list[str] | None = [*sys.path, str(Path.cwd())]
    origin = None
    for end in re.finditer(r"$|\.", where):
        name = where[: end.start()]
        for finder in sys.meta_path:
            if spec := finder.find_spec(name, path):
                path, origin = list(spec.submodule_search_locations or ()), spec.origin
                break
        else:
            raise PaperbenchError(f"{function}: there is no module {name} here. Install it, or name a file.")
    if origin and origin.endswith(".py"):
        return Path(origin)
    raise PaperbenchError(f"{function}: module {where} is not a Python file.")
