"""What analyses of our runs' nets say about y_l of Eq. (1): the share of its values that are below zero.

All are as `paperbench analyze TABLE` makes them by default, so that they can be compared: in float64, on one batch-norm
group of training images of their own size, with the statistics of that group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from paperbench.analysis.record import Analysis, AnalysisSpec
from paperbench.runs.record import Record
from paperbench.specs.run_spec import RunSpec, canonical_json

ReadAnalyses = Callable[[], tuple[Sequence[Analysis], Sequence[str]]]
"""Returns analyses, and a complaint about each unreadable file."""


class Responses:
    """The share of y_l < 0 in the nets of runs.

    Args:
        read: Called once, when a share is first asked for.

    Attributes:
        complaints: About files that could not be read.
    """

    def __init__(self, read: ReadAnalyses) -> None:
        self.complaints: tuple[str, ...] = ()
        self._read = read

    def negative_share(self, record: Record, *, is_trained: bool) -> float | None:
        """Return the share in percent, in the net of a run that has ended or of its seed at initialisation.

        It is the mean over all units, each with the same weight. None if there is no such analysis.
        """
        state = (record.spec.digest, record.iteration) if is_trained else (None, 0)
        return self._shares.get((*_key(record.spec, record.seed), *state, record.spec.recipe["batch_norm"]["group"]))

    @cached_property
    def _shares(self) -> dict[tuple[object, ...], float]:
        analyses, complaints = self._read()
        self.complaints = tuple(complaints)
        return {
            (*_key(spec, one.seed), spec.run, spec.iteration, spec.images): 100 * one.passes.negative_share
            for one in analyses
            if (spec := one.spec).weights is None
            and (spec.precision, spec.batch_norm, spec.initialisation, spec.size) == ("fp64", "batch", "he", None)
        }


def _key(spec: AnalysisSpec | RunSpec, seed: int) -> tuple[object, ...]:
    return canonical_json([spec.net, spec.recipe, spec.data]), seed
