"""Facts of a net and its training that no machine changes, so that equal facts mean equal code.

`training.facts` finds them out. Here they are compared, which needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paperbench.errors import PaperbenchError
from paperbench.files import format_read_error, read_at_most
from paperbench.typed import Line, Problem, TypedError, from_json, to_json, typed

TOLERANCE = 1e-6
"""Largest relative difference of equal values.

They are float64. Between torch 2.11 and 2.15, one thread and two, and AVX2 and AVX-512, the values of the paper's nets
differ by less than a twentieth of it.
"""
INITIAL = "initial size of"
"""Begins the names of values that another version of torch may draw in another way."""
_TOLERANCE_OF_INITIAL = 0.05
_MAX_BYTES = 50_000_000
_RANGE = re.compile(r"(.*\.)(\d{1,4})-(\d{1,4})")


@typed
class Facts:
    """Facts in the order in which they are compared.

    Attributes:
        exact: Statements by what they are about. A layer's begins with its name inside its block, such as a residual
            unit, and a colon; its parts are separated by semicolons. Equal blocks in a row are listed once, as in
            "stages.0.1-17".
        values: Float64 numbers by what they are. They depend on rounding.
    """

    exact: Annotated[tuple[tuple[Line, tuple[Line, ...]], ...], Field(max_length=1_000)]
    values: Annotated[tuple[tuple[Line, tuple[float, ...]], ...], Field(max_length=10_000)]

    def problems(self) -> Iterator[Problem]:
        if sum(1 for _ in islice(_blocks(self.exact), 100_001)) > 100_000:
            yield Problem(("exact",), "must have at most 100,000 blocks.")

    @cached_property
    def hash(self) -> str:
        """16 hex digits of the sha256 of the exact facts."""
        text = json.dumps(self.exact, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<facts {self.hash}>"


@typed
class FactsFile:
    """What `paperbench check --save` writes: facts by what they are of."""

    schema: Literal[1]
    facts: Mapping[str, Facts]

    def to_bytes(self) -> bytes:
        return (json.dumps(json.loads(to_json(self)), indent=1) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> FactsFile:
        try:
            return from_json(cls, read_at_most(path, _MAX_BYTES))
        except OSError as error:
            raise PaperbenchError(format_read_error(path, error, "Name a file or a results directory.")) from error
        except TypedError as error:
            raise PaperbenchError(
                f"{path} is no file of facts: {error} `paperbench check --save` writes one."
            ) from error


def difference(before: Facts, now: Facts) -> str:
    """Name the first fact that differs, in words; "" if none does. The exact ones come first."""
    if before.hash != now.hash:
        return _first_difference(dict(_blocks(before.exact)), dict(_blocks(now.exact)))
    earlier, later = dict(before.values), dict(now.values)
    for what in {**earlier, **later}:
        old, new = earlier.get(what, ()), later.get(what, ())
        tolerance = _TOLERANCE_OF_INITIAL if what.startswith(INITIAL) else TOLERANCE
        scale = max(map(abs, (*old, *new)), default=0.0)
        for one, other in zip_longest(old, new):
            if one is None or other is None or abs(one - other) > tolerance * scale:
                return f"{what}: {_was(one, other)}"
    return ""


def _blocks(exact: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the statements about each block, those that are listed once apart."""
    for name, statements in exact:
        found = _RANGE.fullmatch(name)
        for number in range(int(found[2]), int(found[3]) + 1) if found else ():
            yield f"{found[1]}{number}", statements  # type: ignore[index]
        if not found:
            yield name, statements


def _first_difference(before: Mapping[str, tuple[str, ...]], now: Mapping[str, tuple[str, ...]]) -> str:
    for block in {**before, **now}:
        for number, (old, new) in enumerate(zip_longest(before.get(block, ()), now.get(block, ())), 1):
            if old == new:
                continue
            (old_name, old_parts), (new_name, new_parts) = _parts(old), _parts(new)
            if old_name != new_name:
                return f"{block}, number {number}: {_was(old_name or old, new_name or new)}"
            for one, other in zip_longest(old_parts, new_parts):
                if one != other:
                    name = f"{block}{', ' if ' ' in block else '.'}{old_name}" if old_name else block
                    return f"{name}: {_was(one, other)}"
    return "the order of the blocks"


def _parts(statement: str | None) -> tuple[str, list[str]]:
    """Return a layer's name and the parts of its statement; no name if it is about no layer."""
    if statement is None:
        return "", []
    name, is_layer, rest = statement.partition(": ")
    return (name, rest.split("; ")) if is_layer else ("", [statement])


def _was(old: Any, new: Any) -> str:
    was, now = ("nothing" if value is None else value for value in (old, new))
    return f"was {was} and is {now}"
