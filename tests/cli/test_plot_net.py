"""`paperbench plot` of nets."""

from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.catalogue import resolve
from paperbench.report.description import describe
from tests.cli.conftest import Run


def test_a_net_is_printed_in_sentences(run: Run) -> None:
    code, out, err = run("plot", "preact_resnet164.cifar100")
    assert (code, err) == (0, "")
    assert out.replace("\n  ", " ").splitlines() == describe(resolve("preact_resnet164.cifar100"))


def test_settings_change_the_net_that_is_drawn(run: Run) -> None:
    options = ("--set", "shortcut=exclusive_gating", "--set", "gate_bias=-55e-1")
    net = resolve("preact_resnet110", shortcut="exclusive_gating", gate_bias=-5.5)
    assert run("plot", "preact_resnet110", *options)[1].replace("\n  ", " ").splitlines() == describe(net)


@pytest.mark.parametrize(
    ("form", "magic"), [("svg", b"<svg"), ("pdf", b"%PDF"), pytest.param("png", b"\x89PNG", marks=pytest.mark.full)]
)
def test_a_net_is_drawn_as_a_picture(run: Run, form: str, magic: bytes) -> None:
    assert run("plot", "preact_resnet20", "--format", form) == (0, f"Wrote preact_resnet20.{form}.\n", "")
    assert Path(f"preact_resnet20.{form}").read_bytes().startswith(magic)
