"""JSON files that carry the sha256 of their values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import GetJsonSchemaHandler, SerializerFunctionWrapHandler, model_serializer
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from paperbench.errors import Finding
from paperbench.files import list_directory, read_at_most
from paperbench.specs.run_spec import canonical_json
from paperbench.typed import TypedError, from_json, typed

SCHEMA: Literal[1] = 1
_MAX_BYTES = 10_000_000


class RecordError(Finding):
    """A file that is damaged, or was edited into something that paperbench never writes."""


class ForeignRecordError(RecordError):
    """An undamaged file of another version of paperbench, or in the place of another."""


@typed
class HashedJson:
    """Values that are stored as one JSON object, whose last key holds the sha256 of all others."""

    REMEDY: ClassVar[str]
    FOREIGN_REMEDY: ClassVar[str] = "Use the version that wrote it, or move the file away."

    schema: Literal[1]

    @property
    def file_name(self) -> str:
        """The end of the file's path, which no other values share."""
        raise NotImplementedError

    @property
    def sha256(self) -> str:
        return _sha256(canonical_json(asdict(self)))

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "sha256": self.sha256}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: Path | str = "") -> Self:
        """Parse the text of a file, which messages call `where`."""
        try:
            values = json.loads(text)
            mapping = values if isinstance(values, dict) else {"schema": SCHEMA}
            stored_hash = mapping.pop("sha256", None)
            canonical = canonical_json(values)
        except (ValueError, RecursionError) as error:
            raise RecordError(where, f"is not JSON ({error})", cls.REMEDY) from error
        if mapping.get("schema") != SCHEMA:
            what = f"has schema {mapping.get('schema')!r}, and this version of paperbench reads {SCHEMA}"
            raise ForeignRecordError(where, what, cls.FOREIGN_REMEDY)
        try:
            parsed = from_json(cls, canonical)
        except TypedError as error:
            raise RecordError(where, f"is damaged or was edited: {error}", cls.REMEDY) from error
        if stored_hash != _sha256(canonical):
            what = "does not have the sha256 of its values: it was edited or damaged"
            raise RecordError(where, what, cls.REMEDY)
        return parsed

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a file; return None if it does not exist."""
        try:
            values = cls.from_json(read_at_most(path, _MAX_BYTES), path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Finding.unreadable(path, error) from error
        if not f"/{path.as_posix()}".endswith(f"/{values.file_name}"):
            what = f"holds what belongs in {values.file_name}: it was copied or renamed"
            raise ForeignRecordError(path, what, "Rename it back, or move it away.")
        return values

    @classmethod
    def read_all(cls, directory: Path) -> tuple[list[Self], list[str]]:
        """Return what the JSON files of a directory hold, and a complaint about each unreadable file."""
        values, complaints = [], []
        for path in (one for one in list_directory(directory) if one.suffix == ".json"):
            try:
                if value := cls.read(path):
                    values.append(value)
                elif path.is_symlink():
                    raise Finding(path, "is a link to a file that does not exist", cls.REMEDY)
            except Finding as found:
                complaints.append(str(found))
        return values, complaints

    @model_serializer(mode="wrap")
    def _with_hash(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As part of another document, the values have their hash, too."""
        return {**values(self), "sha256": self.sha256}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the key `sha256`, which is not a field, to the JSON Schema."""
        schema = handler.resolve_ref_schema(handler(core))
        schema["properties"]["sha256"] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
        schema["required"] = [*schema["required"], "sha256"]
        return schema


def _sha256(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()
