"""What `paperbench doctor` finds, without torch."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from paperbench.specs.run_spec import Precision
from paperbench.typed import typed


@typed
class Choice:
    """What `run` takes for a table, and the bytes of memory that a training step of its largest net needs."""

    table: str
    precision: Precision
    engine: str
    memory: int


@typed
class Diagnosis:
    """What `run` would find.

    Attributes:
        device: The device that it takes; None if it refuses the one asked for.
        facts: Sentences about the machine by subject.
        reasons: Why these choices.
        missing: Data that are not here, who needs them, and what gets them.
        problems: What fails, and what to do about it.
    """

    schema: Literal[1]
    device: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
