"""Analyses with random numbers, as if nets had been measured."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from paperbench.analysis.record import Analysis, AnalysisSpec, Jacobians, LeftOut, Passes, Paths, Signal, Spectrum
from paperbench.runs.record import DataFacts
from tests.helpers import CODE, ENVIRONMENT

COPY = DataFacts("CIFAR-10 (a copy)", "a test", canonical=False, fingerprint="c0ffee")


def made(net: str = "preact_resnet20", seed: int = 0, stages: tuple[int, ...] = (3, 3, 3), **changes: Any) -> Analysis:
    """Return an analysis; x_l has 2, 4 and 8 channels in the three stages.

    Args:
        stages: Units per stage.
        changes: Of the fields of `Analysis` and of its spec.
    """
    random = np.random.default_rng([seed, *net.encode()])
    units = [stage for stage, number in enumerate(stages) for _ in range(number)]

    def numbers(count: int) -> tuple[float, ...]:
        return tuple(float(f"{x:.6g}") for x in np.exp(random.normal(size=count)))

    columns = {field.name: numbers(len(units)) for field in fields(Passes)}
    columns["negative"] = tuple(value / 100 for value in columns["negative"])
    of_spec = {name: changes.pop(name) for name in [*changes] if name in {field.name for field in fields(AnalysisSpec)}}
    spec = AnalysisSpec({"net": net}, {}, "c0ffee", None, 0, None, "he", 4, "batch", "fp64")
    analysis = Analysis(
        schema=1,
        kind="analysis",
        net=net,
        seed=seed,
        spec=replace(spec, **of_spec),
        data=COPY,
        loss=2.3,
        output=Signal(3.5, 0.25, 1.5),
        output_gradient=0.125,
        stages=tuple(units),
        passes=Passes(**columns),
        channels=tuple(numbers(2 ** (1 + stage)) for stage in units),
        seconds=1.0,
        code=CODE,
        environment=ENVIRONMENT,
    )
    return replace(analysis, **changes)


def with_everything(analysis: Analysis) -> Analysis:
    """Return an analysis with singular values, paths and units left out."""
    random = np.random.default_rng(analysis.seed)
    last = len(analysis.stages) - 1

    def spectrum(first: int, last: int) -> Spectrum:
        values = tuple(sorted((float(f"{x:.6g}") for x in 1 + random.random(3)), reverse=True))
        return Spectrum(first, last, values, None, 1.5, values, 3, float(f"{values[0] / values[-1]:.6g}"))

    firsts = [last, last - 1, last - 3, 0]
    shares = tuple(float(f"{x:.6g}") for x in random.dirichlet(np.ones(last + 2)))
    return replace(
        analysis,
        jacobians=Jacobians(
            *(10, 4, tuple(spectrum(unit, unit) for unit in range(last + 1)), ()),
            tuple(spectrum(first, last) for first in firsts),
        ),
        paths=Paths(shares, tuple(2 * share for share in shares), shares, 0.0, 0.0),
        left_out=LeftOut(7.0, tuple(8.0 + (3 * unit) % 5 for unit in range(last + 1))),
    )
