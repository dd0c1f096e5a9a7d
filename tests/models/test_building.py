"""Nets of a user's functions: what is counted, and what is refused because it could not be trained or resumed."""

from __future__ import annotations

from typing import Any

import pytest

from paperbench import architecture
from paperbench.catalogue import own_net, resolve
from paperbench.errors import RunError
from paperbench.models.building import checked, draws_noise, macs, parameters, residual
from tests.helpers import ROOT


def net_of(function: str, **arguments: Any) -> Any:
    return own_net(f"own_nets.py:{function}", arguments, 10, 32, ROOT / "tests")


def test_one_of_the_papers_nets_is_counted_and_known_as_such() -> None:
    own, paper = net_of("residual"), resolve("preact_resnet20", depth=8)
    assert (parameters(own), macs(own)) == (architecture.parameters(paper), architecture.macs(paper))
    assert residual(own) == paper


@pytest.mark.parametrize(("function", "is_noisy"), [("mixed", False), ("noisy", True), ("without_batch_norm", False)])
def test_noise_is_found(function: str, is_noisy: bool) -> None:
    assert draws_noise(net_of(function)) is is_noisy


@pytest.mark.parametrize(
    ("function", "arguments", "what"),
    [
        ("after", {"first": "Stateful"}, "equal passes give other values"),
        ("after", {"first": "Counting"}, "a pass changes the buffer 0.passes"),
        ("after", {"first": "Twice"}, "0.bn is called 2 times in a pass in training mode"),
        ("after", {"first": "Frozen"}, "0.bn is called 0 times in a pass in training mode"),
        ("before", {"last": "Pair"}, r"in training, images .* must give logits of shape \[4, 10\], not a tuple"),
        ("unlike", {"kind": "text"}, "returned a str"),
        ("unlike", {"kind": "empty"}, "has no parameters"),
        ("unlike", {"kind": "lazy"}, "1.weight is lazy"),
        ("unlike", {"kind": "double"}, "1.weight is torch.float64"),
        ("unlike", {"kind": "frozen"}, "1.weight is frozen"),
        ("unlike", {"kind": "few"}, r"in tests, .* \[4, 10\], not \[4, 9\]"),
        ("unlike", {"kind": "unknown"}, r"failed \(line \d+, KeyError: 'unknown'\)"),
        ("random_width", {}, "equal seeds of torch give other initial values"),
    ],
)
def test_net_that_could_not_be_trained_or_resumed_is_refused(
    function: str, arguments: dict[str, str], what: str
) -> None:
    with pytest.raises(RunError, match=rf"^own_nets.py:{function}:? .*{what}"):
        checked(net_of(function, **arguments))
