from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paperbench.training.tree_sum import TreeSum


def lists(number: int) -> list[list[Tensor]]:
    """Values whose float32 sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(number)
    return [[torch.randn(shape, generator=generator) * 3.0**k for shape in ((5,), (2, 3))] for k in range(number)]


def tree(values: list[Tensor]) -> Tensor:
    """The sum by its recursive definition: of the largest power of two of values that is not all, then of the rest."""
    if len(values) == 1:
        return values[0].clone()
    half = 1
    while 2 * half < len(values):
        half *= 2
    return tree(values[:half]) + tree(values[half:])


@pytest.mark.parametrize("number", range(1, 18))
def test_sum_is_that_of_the_recursive_definition(number: int) -> None:
    given = lists(number)
    expected = [tree([one[position] for one in given]) for position in range(2)]
    sums = TreeSum()
    for one in given:
        sums.add([tensor.clone() for tensor in one])
    assert all(map(torch.equal, sums.total(), expected))
    in_order = sum((one[1] for one in given[1:]), given[0][1])
    assert number < 4 or not torch.equal(expected[1], in_order), "these values would not show the order"


def test_only_the_tensors_given_are_overwritten() -> None:
    """A list of views leaves the rest of their memory alone; the caller's lists stay as long as they are."""
    memory = torch.ones(4, 6)
    given = [[row[:3]] for row in memory]
    sums = TreeSum()
    for one in given:
        sums.add(one)
    (total,) = sums.total()
    assert total.tolist() == [4, 4, 4]
    assert memory[:, 3:].eq(1).all()
    assert [len(one) for one in given] == [1] * 4


@pytest.mark.parametrize("number", [1, 2, 5, 8, 16])
def test_at_most_a_list_for_each_power_of_two_is_kept(number: int) -> None:
    sums = TreeSum()
    for one in lists(number):
        sums.add(one)
        assert len(sums._parts) <= number.bit_length()
