from __future__ import annotations

import numpy as np
import pytest

from paperbench.data.imagenet.draws import WORDS_PER_IMAGE, below, normal, permutation, uniform, words
from tests.data.imagenet import reference

ALL_ONES = 2**64 - 1


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
        ([ALL_ONES] * 4, [ALL_ONES] * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
        (
            [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
            [0x452821E638D01377, 0xBE5466CF34E90C6C],
            "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
        ),
    ],
)
def test_reference_has_the_known_answers_of_random123(counter: list[int], key: list[int], expected: str) -> None:
    assert [f"{word:016x}" for word in reference.philox(counter, key)] == expected.split()


@pytest.mark.parametrize(("seed", "epoch", "first"), [(0, 0, 0), (1, 2, 3), (999, 119, 1_281_165)])
def test_words_are_those_of_philox(seed: int, epoch: int, first: int) -> None:
    found = words(seed, "training", epoch, first, first + 2)
    names = ("training", "augmentation", epoch)
    expected = reference.stream(seed, *names, first=first * WORDS_PER_IMAGE, count=2 * WORDS_PER_IMAGE)
    assert found.ravel().tolist() == expected


def test_words_never_change() -> None:
    """Runs of any version must draw the same numbers."""
    first, last = words(0, "training", 0, 0, 1)[0, :2], words(7, "training", 3, 1000, 1001)[0, -1:]
    assert [f"{word:016x}" for word in (*first, *last)] == ["b3a805c5b6c8d826", "83e05bf189ebb6ca", "0a99481fbe48d142"]


def test_words_of_any_range_are_those_of_the_whole() -> None:
    whole = words(3, "training", 1, 0, 20)
    assert whole.shape == (20, WORDS_PER_IMAGE)
    assert len(np.unique(whole)) == whole.size
    for first, last in ((0, 1), (4, 9), (19, 20), (7, 7)):
        assert np.array_equal(words(3, "training", 1, first, last), whole[first:last])


def test_seeds_purposes_and_epochs_have_words_of_their_own() -> None:
    streams = [("training", 0, 0), ("training", 0, 1), ("training", 1, 0), ("reestimation", 0, 0)]
    drawn = [words(seed, purpose, epoch, 0, 4) for purpose, seed, epoch in streams]
    assert len(np.unique(drawn)) == 4 * 4 * WORDS_PER_IMAGE


def test_order_is_that_of_one_word_per_image() -> None:
    drawn = reference.stream(5, "training", "order", 2, count=101)
    found = permutation(5, "training", 2, 101)
    assert found.tolist() == sorted(range(101), key=lambda image: drawn[image])
    assert found.dtype == np.int64


def test_orders_never_change() -> None:
    assert permutation(0, "training", 0, 10).tolist() == [1, 2, 6, 0, 8, 4, 7, 3, 9, 5]


def test_numbers_are_exact_functions_of_a_word() -> None:
    some = np.array([0, 1, 2**11, 2**32 - 1, 2**32, 2**63, 2**64 - 2**11, 2**64 - 1], np.uint64)
    assert uniform(some).tolist() == [0, 0, 2**-53, (2**21 - 1) / 2**53, 2**-32, 0.5, 1 - 2**-53, 1 - 2**-53]
    assert below(some, 225).tolist() == [0, 0, 0, 0, 0, 112, 224, 224]
    assert below(some, 1).tolist() == [0] * 8
    assert below(some, 2**32 - 1).tolist() == [reference.pick(int(word), 2**32 - 1) for word in some]


def test_normal_numbers_are_those_of_box_and_muller() -> None:
    pairs = words(11, "training", 0, 0, 50)[:, :4]
    expected = [reference.normals(row) for row in pairs.tolist()]
    np.testing.assert_allclose(normal(pairs)[:, :3], expected, rtol=1e-12, atol=1e-14)
    extremes = np.array([[0, 0, ALL_ONES, ALL_ONES]], np.uint64)
    assert normal(extremes)[0] == pytest.approx([0, 8.57167, 0, 0], abs=1e-4), "never infinite"
