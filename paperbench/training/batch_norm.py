"""Batch norm in training: without cuDNN, in groups as on the paper's GPUs, and with its averages kept apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TrainingBatchNorm2d(nn.BatchNorm2d):
    """BN that leaves its moving averages to `BatchNormAverages`, and otherwise computes what `nn.BatchNorm2d` does.

    In training it keeps the statistics of the batch. So processes that share a batch can exchange them, and add them to
    the averages in the order of the groups. Make one with `replace`.

    It uses torch's own kernels on GPUs: for channels_last float32, torch would choose a mode of cuDNN that may overflow
    where others do not, and a net whose activations grow would seem to diverge.

    Attributes:
        means, variances: Statistics of the last batch in training, (groups, C) each; the variances are unbiased. One
            group, unless this is a `GroupedBatchNorm2d`.
    """

    means: Tensor
    variances: Tensor

    @staticmethod
    def replace(layer: nn.BatchNorm2d) -> None:
        """Turn a layer on its final device into one of this class, in place."""
        layer.__class__ = TrainingBatchNorm2d
        layer.means, layer.variances = (layer.weight.new_zeros(1, layer.num_features) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        own = self.weight, self.bias
        # torch.batch_norm ignores its argument cudnn_enabled
        if not self.training:
            return torch.native_batch_norm(x, *own, self.running_mean, self.running_var, False, 0.0, self.eps)[0]
        # "moving averages" in which the batch has the weight 1: its statistics
        return torch.native_batch_norm(x, *own, self.means[0], self.variances[0], True, 1.0, self.eps)[0]


class GroupedBatchNorm2d(TrainingBatchNorm2d):
    """BN that splits a batch into consecutive groups of images and normalises each group separately.

    Equal to `TrainingBatchNorm2d` on one group after another, up to rounding, but the net takes the whole batch at
    once. With one group it calls the same function as its base class. For training only.

    Args:
        like: The layer whose parameters, buffers and settings are shared.
        group_size: Images per group.
        groups: Groups per training batch; None if that varies.

    Attributes:
        weight, bias: With several `groups`, one copy per group, (groups, C): the gradients per group are then summed
            for all layers at once, which is faster than layer by layer. Otherwise the parameters of `like`.

    Raises:
        ValueError: The batch does not consist of `groups` groups.

    Shape: (N, C, H, W) with N a multiple of `group_size` -> the same.
    """

    def __init__(self, like: nn.BatchNorm2d, group_size: int, groups: int | None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, device="meta")
        self.group_size, self.groups = group_size, groups
        self.weight, self.bias = like.weight, like.bias
        if groups is not None and groups > 1:
            self.weight, self.bias = (nn.Parameter(p.detach().repeat(groups, 1)) for p in (like.weight, like.bias))
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = None  # saves a kernel per layer and step; the trainer counts
        self.means, self.variances = (like.weight.detach().new_zeros(groups or 1, like.num_features) for _ in range(2))
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:
        groups, rest = divmod(x.shape[0], self.group_size)
        if rest or not groups or groups != (self.groups or groups):
            raise ValueError(
                f"{x.shape[0]} images cannot be split into {self.groups or 'whole'} groups of {self.group_size}."
            )
        if groups == 1:
            if self.groups is None:
                self.means, self.variances = self.means[:1], self.variances[:1]
            return super().forward(x)
        y, means, variances = _GroupedBatchNorm.apply(x, self.weight, self.bias, groups, self.eps)
        n = self.group_size * x.shape[2] * x.shape[3]
        with torch.no_grad():
            variances = variances * (n / (n - 1))
            if self.groups is None:
                self.means, self.variances = means, variances
            else:  # the same tensors for every batch, as a captured step needs them
                self.means.copy_(means)
                self.variances.copy_(variances)
        normalised: Tensor = y
        return normalised


class BatchNormAverages:
    """The averages of all BN layers of a net, which become the statistics that it is tested with.

    Args:
        net: All its BN layers are of `TrainingBatchNorm2d`, with the same number of groups and the same weight of the
            newest statistics.
    """

    def __init__(self, net: nn.Module) -> None:
        self._layers = [layer for layer in net.modules() if isinstance(layer, TrainingBatchNorm2d)]
        self._averages: list[Tensor] = []
        for layer in self._layers:
            assert layer.running_mean is not None  # noqa: S101
            assert layer.running_var is not None  # noqa: S101
            self._averages += [layer.running_mean, layer.running_var]

    @property
    def statistics(self) -> list[Tensor]:
        """The statistics of the last batch in training, (groups, C) each."""
        return [part for layer in self._layers for part in (layer.means, layer.variances)]

    @torch.no_grad()
    def last_batch(self) -> Tensor:
        """Return the statistics of the last batch in training, a row per group: (groups, values). Clears them."""
        parts = self.statistics
        rows = torch.cat(parts, dim=1)
        torch._foreach_zero_(parts)  # with a weight of 0, torch's kernel would add what is not finite to the next ones
        return rows

    @torch.no_grad()
    def move(self, row: Tensor) -> None:
        """Add a group's row of statistics to the moving averages, with the weight that the layers have."""
        torch._foreach_lerp_(self._averages, self._split(row), self._layers[0].momentum or 0.0)

    @torch.no_grad()
    def set(self, row: Tensor) -> None:
        """Replace the averages."""
        torch._foreach_copy_(self._averages, self._split(row))

    def _split(self, row: Tensor) -> list[Tensor]:
        return list(row.split([average.numel() for average in self._averages]))


class _GroupedBatchNorm(torch.autograd.Function):
    """(x - mean) / std * weight + bias per group. Also returns the groups' means and (biased) variances, (groups, C).

    Weight and bias are (C,) or (groups, C). Statistics are computed in float32 or wider, whatever the dtype of x.

    The backward pass is explicit so that a compiler computes its two sums in one pass over the images. Everything of
    the images' size has their shape: a compiler would write other shapes in another layout than convolutions read.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, ...]:
        wide = _widened(x)
        variances, means = torch.var_mean(wide.unflatten(0, (groups, -1)), dim=(1, 3, 4), correction=0)
        deviations = torch.rsqrt(variances + eps)
        y = (wide - _by_image(means, x)) * _by_image(deviations * weight, x) + _by_image(bias.expand_as(means), x)
        ctx.save_for_backward(x, weight, means, deviations)
        ctx.mark_non_differentiable(means, variances)
        # With torch 2.11, a compiled `to` without effect cuts off the gradient of what it returns; a view keeps it.
        return y.to(x.dtype).view_as(x), means, variances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, means, deviations = ctx.saved_tensors
        wide, dy = _widened(x), _widened(gradient)
        normalised = (wide - _by_image(means, x)) * _by_image(deviations, x)
        sums, sums_normalised = (s.unflatten(0, (len(means), -1)).sum((1, 3, 4)) for s in (dy, dy * normalised))
        n = x.numel() // means.numel()
        mean_dy = (_by_image(sums, x) + normalised * _by_image(sums_normalised, x)) / n
        dx = (dy - mean_dy) * _by_image(deviations * weight, x)
        d_weight, d_bias = (s.sum_to_size(weight.shape).to(weight.dtype) for s in (sums_normalised, sums))
        return dx.to(x.dtype), d_weight, d_bias, None, None


def _widened(x: Tensor) -> Tensor:
    """Convert to float32, unless x is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _by_image(values: Tensor, x: Tensor) -> Tensor:
    """Repeat values (groups, C) for each image of x (N, C, H, W): (N, C, 1, 1)."""
    return values[:, None].expand(-1, len(x) // len(values), -1).reshape(*x.shape[:2], 1, 1)
