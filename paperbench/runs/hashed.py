"""JSON files that carry the sha256 of their values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from paperbench.errors import RunError
from paperbench.files import format_read_error, list_directory, read_at_most
from paperbench.specs.run_spec import canonical_json
from paperbench.typed import TypedError, from_json, typed

Stored = TypeVar("Stored")

SCHEMA: Literal[1] = 1
_MAX_BYTES = 10_000_000
_READ_REMEDY = "Restore it or make it readable, then repeat the command."


class RecordError(RunError):
    """A file that is damaged, or was edited into something that paperbench never writes."""


class ForeignRecordError(RecordError):
    """An undamaged file of another version of paperbench, or of another run."""


@typed
class HashedJson:
    """Values that are stored as one JSON object, whose last key holds the sha256 of all others."""

    schema: Literal[1]

    def to_json(self) -> str:
        """Return the text of the file."""
        values = asdict(self)
        return json.dumps({**values, "sha256": _sha256(canonical_json(values))}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the text of a file."""
        try:
            values = json.loads(text)
            mapping = values if isinstance(values, dict) else {"schema": SCHEMA}
            stored_hash = mapping.pop("sha256", None)
            canonical = canonical_json(values)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"is not JSON ({error}).") from error
        if mapping.get("schema") != SCHEMA:
            raise ForeignRecordError(
                f"has schema {mapping.get('schema')!r}, and this version of paperbench reads {SCHEMA}."
            )
        try:
            parsed = from_json(cls, canonical)
        except TypedError as error:
            raise RecordError(f"is damaged or was edited: {error}") from error
        if stored_hash != _sha256(canonical):
            raise RecordError("does not have the sha256 of its values: it was edited or damaged.")
        return parsed

    @classmethod
    def read(cls, path: Path, remedy: str, foreign_remedy: str) -> Self:
        """Read a file.

        Args:
            remedy: End of the message if the file is damaged: what to do.
            foreign_remedy: End of the message if the file has another schema.

        Raises:
            FileNotFoundError, NotADirectoryError: The file does not exist.
        """
        try:
            return cls.from_json(read_at_most(path, _MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise RunError(format_read_error(path, error, _READ_REMEDY)) from error
        except ForeignRecordError as error:
            raise ForeignRecordError(f"{path} {error} {foreign_remedy}") from error
        except RecordError as error:
            raise RecordError(f"{path} {error} {remedy}") from error

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the key `sha256`, which is not a field, to the JSON Schema."""
        schema = handler.resolve_ref_schema(handler(core))
        schema["properties"]["sha256"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
        schema["required"] = [*schema["required"], "sha256"]
        return schema


def read_all(directory: Path, read: Callable[[Path], Stored], remedy: str) -> tuple[list[Stored], list[str]]:
    """Return what a function reads from the JSON files of a directory, and a complaint about each unreadable file."""
    values, complaints = [], []
    for path in list_directory(directory):
        if path.suffix != ".json":
            continue
        try:
            values.append(read(path))
        except OSError as error:  # a dangling link
            complaints.append(format_read_error(path, error, remedy))
        except RunError as error:
            complaints.append(str(error))
    return values, complaints


def _sha256(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()
