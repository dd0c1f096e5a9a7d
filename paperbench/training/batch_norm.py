"""Batch norm in training: without cuDNN, and with its averages kept apart."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _TrainingBatchNorm(_BatchNorm):
    """BN that leaves its moving averages to `BatchNormAverages`, and otherwise computes what its other base class does.

    In training it keeps the statistics of the batch. So processes that share a batch can exchange them, and add them to
    the averages in the order of the groups.

    Attributes:
        means, variances: Statistics of the last batch in training, (C,) each; the variances are unbiased.
    """

    means: Tensor
    variances: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        kept = self.running_mean, self.running_var, self.momentum
        self.running_mean, self.running_var, self.momentum = self.means, self.variances, 1.0
        try:
            return super().forward(x)
        finally:
            self.running_mean, self.running_var, self.momentum = kept


class TrainingBatchNorm2d(_TrainingBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d` whose averages are kept apart. Make one with `replace`.

    It uses torch's own kernels on GPUs: for channels_last float32, torch would choose a mode of cuDNN that may overflow
    where others do not, and a net whose activations grow would seem to diverge.
    """

    @staticmethod
    def replace(layer: _BatchNorm) -> None:
        """Turn a BN layer on its final device into one whose averages are kept apart, in place."""
        if not isinstance(layer, _TrainingBatchNorm):
            layer.__class__ = TrainingBatchNorm2d if type(layer) is nn.BatchNorm2d else _derived(cast(Any, type(layer)))
        assert layer.running_mean is not None  # noqa: S101
        layer.means, layer.variances = (layer.running_mean.new_zeros(layer.num_features) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        own = self.weight, self.bias
        # torch.batch_norm ignores its argument cudnn_enabled
        if not self.training:
            return torch.native_batch_norm(x, *own, self.running_mean, self.running_var, False, 0.0, self.eps)[0]
        # "moving averages" in which the batch has the weight 1: its statistics
        return torch.native_batch_norm(x, *own, self.means, self.variances, True, 1.0, self.eps)[0]


@cache
def _derived(kind: Any) -> type[_BatchNorm]:
    """Return a class of another library's BN, such as one that includes its activation."""
    return type(kind.__name__, (_TrainingBatchNorm, kind), {"__module__": kind.__module__})


def keep_averages_apart(net: nn.Module, newest: float) -> None:
    """Replace all BN layers of a net on its final device, in place; `newest` is the weight of the newest statistics."""
    for layer in net.modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            TrainingBatchNorm2d.replace(layer)
            layer.momentum = newest
            # Nothing depends on this counter; on a GPU it would cost a kernel per layer and pass.
            layer.num_batches_tracked = layer.get_buffer("num_batches_tracked").cpu()


class BatchNormAverages:
    """The averages of all BN layers of a net, which become the statistics that it is tested with.

    Args:
        net: The averages of its BN layers, if any, are kept apart, with the same weight of the newest statistics.
    """

    def __init__(self, net: nn.Module) -> None:
        self._layers = [layer for layer in net.modules() if isinstance(layer, _TrainingBatchNorm)]
        names = "running_mean", "running_var"
        self._averages = [layer.get_buffer(name) for layer in self._layers for name in names]
        self._like = next(net.parameters())

    @property
    def statistics(self) -> list[Tensor]:
        """The statistics of the last batch in training, (C,) each."""
        return [part for layer in self._layers for part in (layer.means, layer.variances)]

    @torch.no_grad()
    def last_batch(self) -> Tensor:
        """Return the statistics of the last batch in training, (values,). Clears them."""
        if not (parts := self.statistics):  # torch refuses empty lists
            return self._like.new_empty(0)
        row = torch.cat(parts)
        torch._foreach_zero_(parts)  # with a weight of 0, torch's kernel would add what is not finite to the next ones
        return row

    @torch.no_grad()
    def move(self, row: Tensor) -> None:
        """Add a group's row of statistics to the moving averages, with the weight that the layers have."""
        if self._layers:
            torch._foreach_lerp_(self._averages, self._split(row), self._layers[0].momentum or 0.0)

    @torch.no_grad()
    def set(self, row: Tensor) -> None:
        """Replace the averages."""
        torch._foreach_copy_(self._averages, self._split(row))

    def _split(self, row: Tensor) -> list[Tensor]:
        return list(row.split([average.numel() for average in self._averages]))
