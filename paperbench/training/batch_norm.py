"""Batch norm without cuDNN, and grouped: each group of images has separate statistics, as on the paper's two GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class BatchNorm2dWithoutCudnn(nn.BatchNorm2d):
    """BN that uses torch's own kernels on GPUs, and computes what `nn.BatchNorm2d` does.

    In training, torch chooses a mode of cuDNN for channels_last float32 that may overflow where others do not: a net
    whose activations grow would seem to diverge. Needs a momentum, and does not count batches: the trainer does.
    """

    def forward(self, x: Tensor) -> Tensor:
        return self._normalise(x, self.training, self.momentum or 0.0)

    def _normalise(self, x: Tensor, is_training: bool, weight: float) -> Tensor:
        """Normalise the whole batch; `weight` is that of the batch in the moving averages."""
        own, averages = (self.weight, self.bias), (self.running_mean, self.running_var)
        # torch.batch_norm ignores its argument cudnn_enabled
        return torch.native_batch_norm(x, *own, *averages, is_training, weight, self.eps)[0]


class GroupedBatchNorm2d(BatchNorm2dWithoutCudnn):
    """BN that splits a batch into consecutive groups of images and normalises each group separately.

    Equal to `nn.BatchNorm2d` on one group after another, up to rounding, but the net takes the whole batch at once.
    With one group it calls the same function as its base class. For training only.

    Args:
        like: The layer whose parameters, buffers and settings are shared.
        group_size: Images per group.
        groups: Groups per training batch; `MovingAverages` then updates the running statistics. If None, batches have
            any number of groups, and the running statistics are plain averages over all groups so far.

    Attributes:
        weight, bias: With several `groups`, one copy per group, (groups, C): the gradients per group are then summed
            for all layers at once, which is faster than layer by layer. Otherwise the parameters of `like`.
        means, variances: Statistics of the last batch, (groups, C) each, with unbiased variances. None without
            `groups`.

    Raises:
        ValueError: `like` has no momentum (cumulative averages), or the batch does not consist of `groups` groups.

    Shape: (N, C, H, W) with N a multiple of `group_size` -> the same.
    """

    means: Tensor | None
    variances: Tensor | None

    def __init__(self, like: nn.BatchNorm2d, group_size: int, groups: int | None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, device="meta")
        if like.momentum is None:
            raise ValueError("BN with cumulative averages cannot be grouped.")
        self.group_size, self.groups, self.average_weight = group_size, groups, like.momentum
        self.weight, self.bias = like.weight, like.bias
        if groups is not None and groups > 1:
            self.weight, self.bias = (nn.Parameter(p.detach().repeat(groups, 1)) for p in (like.weight, like.bias))
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = None  # saves a kernel per layer and step; the trainer counts
        self._num_averaged = 0
        statistics = None if groups is None else like.weight.detach().new_zeros(groups, like.num_features)
        self.register_buffer("means", statistics, persistent=False)
        self.register_buffer("variances", None if statistics is None else statistics.clone(), persistent=False)
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:
        groups, rest = divmod(x.shape[0], self.group_size)
        if rest or not groups or groups != (self.groups or groups):
            raise ValueError(
                f"{x.shape[0]} images cannot be split into {self.groups or 'whole'} groups of {self.group_size}."
            )
        if groups == 1:
            weight = self.average_weight if self.groups is not None else 1 / (self._num_averaged + 1)
            self._num_averaged += 1 if self.groups is None else 0
            return self._normalise(x, True, weight)
        y, means, variances = _GroupedBatchNorm.apply(x, self.weight, self.bias, groups, self.eps)
        n = self.group_size * x.shape[2] * x.shape[3]
        self._record(means, variances * (n / (n - 1)))
        normalised: Tensor = y
        return normalised

    @torch.no_grad()
    def _record(self, means: Tensor, variances: Tensor) -> None:
        """Keep the groups' statistics, (groups, C) each, or average them into the running statistics."""
        if self.means is not None and self.variances is not None:
            self.means.copy_(means)
            self.variances.copy_(variances)
            return
        self._num_averaged += len(means)
        for average, values in ((self.running_mean, means), (self.running_var, variances)):
            if average is not None:
                average.lerp_(values.mean(0), len(values) / self._num_averaged)


class MovingAverages:
    """Moving averages of all grouped BN layers of a net, updated together to save two kernels per layer.

    Args:
        layers: Layers with the same number of groups. Layers with one group update themselves and are skipped.
    """

    def __init__(self, layers: Iterable[GroupedBatchNorm2d]) -> None:
        self._averages: list[Tensor] = []
        self._statistics: dict[int, list[Tensor]] = {}  # by group
        self._weight = 0.0
        for layer in layers:
            self._weight = layer.average_weight
            for average, statistics in ((layer.running_mean, layer.means), (layer.running_var, layer.variances)):
                if average is not None and statistics is not None and len(statistics) > 1:
                    self._averages.append(average)
                    for group, values in enumerate(statistics.unbind()):
                        self._statistics.setdefault(group, []).append(values)

    @torch.no_grad()
    def update(self) -> None:
        """Add the statistics of the last batch, one group after another."""
        for statistics in self._statistics.values():
            torch._foreach_lerp_(self._averages, statistics, self._weight)


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
