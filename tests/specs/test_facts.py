"""Facts are compared one by one: any change is named, and rounding is not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paperbench.specs.facts import INITIAL, TOLERANCE, Facts, difference
from paperbench.typed import from_json, to_json

NUMBERS = st.floats(1e-3, 1e3).flatmap(lambda x: st.sampled_from([x, -x]))
LAYERS = st.lists(
    st.tuples(st.sampled_from(["conv", "residual.bn"]), st.lists(st.integers(0, 99), min_size=1, max_size=3)).map(
        lambda one: f"{one[0]}: Layer; {'; '.join(f's {part}' for part in one[1])}"
    ),
    min_size=1,
    max_size=3,
).map(tuple)
BLOCKS = st.lists(LAYERS, min_size=1, max_size=4).map(
    lambda rows: tuple(
        (name, own) for name, own in zip(("stem", "stages.0.0", "stages.0.1-3", "fc"), rows, strict=False)
    )
)
VALUES = st.lists(st.lists(NUMBERS, min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(
    lambda rows: tuple((f"value {number}", own) for number, own in enumerate(rows))
)
FACTS = st.builds(Facts, exact=BLOCKS, values=VALUES)


@given(FACTS, st.data())
def test_any_change_is_named_and_rounding_is_not(facts: Facts, data: st.DataObject) -> None:
    assert difference(facts, from_json(Facts, to_json(facts))) == ""
    i = data.draw(st.integers(0, len(facts.values) - 1))
    what, numbers = facts.values[i]

    def with_values(name: str, own: tuple[float, ...]) -> Facts:
        return replace(facts, values=(*facts.values[:i], (name, own), *facts.values[i + 1 :]))

    j = data.draw(st.integers(0, len(numbers) - 1))
    factor = 1 + data.draw(st.sampled_from([-1, 1])) * TOLERANCE * max(map(abs, numbers)) / abs(numbers[j])
    for times, is_named in ((0.5, False), (2, True)):
        one = numbers[j] * (1 + times * (factor - 1))
        found = difference(facts, with_values(what, (*numbers[:j], one, *numbers[j + 1 :])))
        assert found == (f"{what}: was {numbers[j]} and is {one}" if is_named else "")
    assert difference(facts, with_values(what, (*numbers, 1.0))) == f"{what}: was nothing and is 1.0"
    assert difference(with_values(what, (*numbers, 1.0)), facts) == f"{what}: was 1.0 and is nothing"
    initial = with_values(f"{INITIAL} fc", (1.0,))
    assert difference(initial, with_values(f"{INITIAL} fc", (1.04,))) == ""


@given(FACTS, st.data())
def test_any_other_statement_is_named_with_its_block(facts: Facts, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(facts.exact) - 1))
    block, rows = facts.exact[i]
    j = data.draw(st.integers(0, len(rows) - 1))
    layer = rows[j].partition(":")[0]

    def with_rows(*own: str) -> Facts:
        return replace(facts, exact=(*facts.exact[:i], (block, own), *facts.exact[i + 1 :]))

    first = block.partition("-")[0]
    added = with_rows(*rows[:j], f"{rows[j]}; eps 1", *rows[j + 1 :])
    assert difference(facts, added) == f"{first}.{layer}: was nothing and is eps 1"
    assert difference(added, facts) == f"{first}.{layer}: was eps 1 and is nothing"
    assert difference(facts, with_rows(*rows[:j], "other: Layer", *rows[j + 1 :])) == (
        f"{first}, number {j + 1}: was {layer} and is other"
    )
    assert (
        difference(facts, with_rows(*rows, "more: Layer"))
        == f"{first}, number {len(rows) + 1}: was nothing and is more"
    )
    assert added.hash != facts.hash
