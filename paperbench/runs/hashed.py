"""JSON files that carry the sha256 of their values, and how they are read back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal, Self

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from paperbench.errors import RunError
from paperbench.files import read_at_most, unreadable
from paperbench.specs.run_spec import canonical_json
from paperbench.typed import TypedError, from_json, typed

SCHEMA: Literal[1] = 1
_MAX_BYTES = 10_000_000


class RecordError(RunError):
    """A file that is damaged, or was edited into something that paperbench never writes."""


class ForeignRecordError(RecordError):
    """A sound file of another version of paperbench, or of another run."""


@typed
class HashedJson:
    """Values that are kept as one JSON object, with the sha256 of all of them under its last key."""

    schema: Literal[1]

    def to_json(self) -> str:
        """The text of the file."""
        values = asdict(self)
        return json.dumps({**values, "sha256": _sha256(canonical_json(values))}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The values that a file holds.

        Raises:
            ForeignRecordError: They are of another schema.
            RecordError: They are not of this type, contradict each other, or were edited.
        """
        try:
            values = json.loads(text)
            facts = values if isinstance(values, dict) else {"schema": SCHEMA}
            signature = facts.pop("sha256", None)
            canonical = canonical_json(values)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"is not JSON ({error}).") from error
        if facts.get("schema") != SCHEMA:
            raise ForeignRecordError(
                f"has schema {facts.get('schema')!r}, and this version of paperbench reads {SCHEMA}."
            )
        try:
            read = from_json(cls, canonical)
        except TypedError as error:
            raise RecordError(f"is damaged or was edited: {error}") from error
        if signature != _sha256(canonical):
            raise RecordError("does not have the sha256 of its values: it was edited or damaged.")
        return read

    @classmethod
    def read(cls, path: Path, remedy: str, foreign_remedy: str) -> Self:
        """The values in a file.

        Args:
            remedy: What to do if the file is damaged, for the message.
            foreign_remedy: What to do if it is of another schema.

        Raises:
            FileNotFoundError, NotADirectoryError: There is no such file.
            RecordError: As `from_json`, or it cannot be read.
        """
        try:
            return cls.from_json(read_at_most(path, _MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise RecordError(unreadable(path, error, remedy)) from error
        except ForeignRecordError as error:
            raise ForeignRecordError(f"{path} {error} {foreign_remedy}") from error
        except RecordError as error:
            raise RecordError(f"{path} {error} {remedy}") from error

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema of the file, which has one key more than the values."""
        schema = handler.resolve_ref_schema(handler(core))
        schema["properties"]["sha256"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
        schema["required"] = [*schema["required"], "sha256"]
        return schema


def _sha256(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()
