from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from paperbench.training.turns import Place

GPU = torch.device("cuda", 99)


class Generator:
    """A handle on a state, as torch's for GPUs are."""

    def __init__(self, state: list[int]) -> None:
        self.state = state

    def clone_state(self) -> Generator:
        return Generator([*self.state])

    def graphsafe_get_state(self) -> Generator:
        return Generator(self.state)

    def graphsafe_set_state(self, other: Generator) -> None:
        self.state = other.state


def test_places_on_a_gpu_have_streams_and_generators_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states are exchanged themselves, as a captured step keeps its own. One that replaces it loses nothing."""
    default, current = Generator([5]), [None]

    @contextmanager
    def use(stream: None) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: object())
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "default_generators", {99: default})
    original, places, kept = default.state, [Place(GPU, 0), Place(GPU, 1)], {}
    streams = {0: None, 1: None}
    for turn in range(1, 5):
        for number, place in enumerate(places):
            with place.entered():
                streams[number] = streams[number] or current[-1]
                assert current[-1] is streams[number]
                assert default.state is kept.get(number, default.state)
                default.state[0] += 10 * number + 1
                assert default.state == [5 + turn * (10 * number + 1)]
                if turn == 2:  # as after a failed capture
                    default.graphsafe_set_state(default.clone_state())
                kept[number] = default.state
        assert (default.state is original, default.state, current) == (True, [5], [None])
    with Place(GPU, 1).entered():
        assert current[-1] is streams[1], "torch has only so many"
    assert len({*streams.values(), None}) == 3
