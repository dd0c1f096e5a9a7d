"""A command that is written from what was chosen, and read again, chooses the same."""

from __future__ import annotations

import shlex
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from paperbench.cli.arguments import chosen
from paperbench.cli.main import build_parser
from paperbench.options import Selection, TrainingOptions, arguments, command

PARSER = build_parser()
WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)
"""Values with dashes, equals signs and quotes."""
NAMES = WORDS.filter(lambda word: not word.startswith("-"))
PATHS = st.lists(WORDS, min_size=1).map(" ".join).map(Path)
SELECTIONS = st.builds(
    Selection,
    table=NAMES,
    cells=st.lists(NAMES, min_size=1).map(tuple),
    profile=WORDS,
    seeds=st.none() | st.integers(1, 1000),
    results=PATHS,
    root=st.none() | PATHS,
)
OPTIONS = st.builds(
    TrainingOptions,
    precision=st.none() | WORDS,
    device=WORDS,
    engine=WORDS,
    stop_at=st.none() | st.integers(1),
    max_seconds=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
    incompatible=st.sampled_from(["refuse", "restart"]),
    data=st.none() | PATHS,
)


@given(selection=SELECTIONS, training=OPTIONS)
def test_command_chooses_what_it_was_written_from(selection: Selection, training: TrainingOptions) -> None:
    for words in (arguments("run", selection, training), shlex.split(command("run", selection, training))[1:]):
        args = PARSER.parse_args(words)
        assert (chosen(Selection, args), chosen(TrainingOptions, args)) == (selection, training)


def test_command_has_only_what_differs_from_the_defaults() -> None:
    given = Selection("table2", ("a", "b c"), results=Path("-r")), TrainingOptions(stop_at=3, data=Path("d"))
    assert command("run", Selection("table2"), TrainingOptions()) == "paperbench run table2"
    assert (
        command("run", *given, "--yes")
        == "paperbench run table2 --cells a 'b c' --stop-at 3 --yes --data d --results=-r"
    )
