"""Batch norm in groups: each group of images has statistics of its own, as on the paper's GPUs, in one operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """BN that splits a batch into groups of so many images, one after the other, and normalises each by itself.

    What `nn.BatchNorm2d` makes of the groups one by one, up to rounding, but a net can take the whole batch at once.
    With one group it computes as `nn.BatchNorm2d`. For training alone.

    Args:
        like: The layer whose parameters, buffers and settings it has.
        group_size: Images a group.
        groups: Groups a training batch, whose statistics are left for `MovingAverages`. None: batches have any number
            of groups, and statistics become plain averages over all groups from now on.

    Attributes:
        weight, bias: Of several `groups` one copy each, (groups, C), and so gradients by group, which are cheaper to
            sum over all layers at once than layer by layer. Else those of `like`.
        means, variances: Of the last batch, (groups, C) each; the variances are unbiased. None without `groups`.

    Raises:
        ValueError: The layer has no momentum, but averages over all batches; or the batch has another number of images.

    Shape: (N, C, H, W) with N a multiple of `group_size` -> the same.
    """

    means: Tensor | None
    variances: Tensor | None

    def __init__(self, like: nn.BatchNorm2d, group_size: int, groups: int | None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, device="meta")
        if like.momentum is None:
            raise ValueError("BN with cumulative averages cannot be grouped.")
        self.group_size, self.groups, self.share = group_size, groups, like.momentum
        self.weight, self.bias = like.weight, like.bias
        if groups is not None and groups > 1:
            self.weight, self.bias = (nn.Parameter(p.detach().repeat(groups, 1)) for p in (like.weight, like.bias))
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = None  # a kernel a layer and step for a number that the trainer knows
        self._averaged = 0
        kept = None if groups is None else like.weight.detach().new_zeros(groups, like.num_features)
        self.register_buffer("means", kept, persistent=False)
        self.register_buffer("variances", None if kept is None else kept.clone(), persistent=False)
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:
        groups, left = divmod(x.shape[0], self.group_size)
        if left or not groups or groups != (self.groups or groups):
            raise ValueError(f"{x.shape[0]} images are not {self.groups or 'some'} groups of {self.group_size}.")
        if groups == 1:
            share = self.share if self.groups is not None else 1 / (self._averaged + 1)
            self._averaged += 1 if self.groups is None else 0
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, share, self.eps)
        y, means, variances = _Normalised.apply(x, self.weight, self.bias, groups, self.eps)
        values = self.group_size * x.shape[2] * x.shape[3]
        self._take(means, variances * (values / (values - 1)))
        normalised: Tensor = y
        return normalised

    @torch.no_grad()
    def _take(self, means: Tensor, variances: Tensor) -> None:
        """Take in the groups' statistics, (groups, C) each."""
        if self.means is not None and self.variances is not None:
            self.means.copy_(means)
            self.variances.copy_(variances)
            return
        self._averaged += len(means)
        for average, seen in ((self.running_mean, means), (self.running_var, variances)):
            if average is not None:
                average.lerp_(seen.mean(0), len(seen) / self._averaged)


class MovingAverages:
    """Of many layers of one net, updated together: layer by layer it would take two kernels each.

    Args:
        layers: With `groups`, all the same. Those with one group update themselves.
    """

    def __init__(self, layers: Iterable[GroupedBatchNorm2d]) -> None:
        self._averages: list[Tensor] = []
        self._seen: dict[int, list[Tensor]] = {}  # by group
        self._share = 0.0
        for layer in layers:
            self._share = layer.share
            for average, seen in ((layer.running_mean, layer.means), (layer.running_var, layer.variances)):
                if average is not None and seen is not None and len(seen) > 1:
                    self._averages.append(average)
                    for group, values in enumerate(seen.unbind()):
                        self._seen.setdefault(group, []).append(values)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the statistics of the last batch, one group after the other."""
        for seen in self._seen.values():
            torch._foreach_lerp_(self._averages, seen, self._share)


class _Normalised(torch.autograd.Function):
    """(x - mean) / std * weight + bias by groups; also the groups' means and (biased) variances, (groups, C) each.

    Weight and bias are (C,), or (groups, C).

    Spelt out rather than left to autograd, so that a compiler finds the two sums of the backward pass in one pass over
    the images. Statistics are computed in float32 at least, whatever the images are.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, ...]:
        wide = _by_groups(x, groups)
        variance, mean = torch.var_mean(wide, dim=(1, 3, 4), correction=0, keepdim=True)
        deviation = torch.rsqrt(variance + eps)
        y = (wide - mean) * (deviation * _by_channels(weight)) + _by_channels(bias)
        ctx.save_for_backward(x, weight, mean, deviation)
        means, variances = mean.flatten(1), variance.flatten(1)
        ctx.mark_non_differentiable(means, variances)
        return y.to(x.dtype).view_as(x), means, variances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, deviation = ctx.saved_tensors
        groups = mean.shape[0]
        wide, dy = _by_groups(x, groups), _by_groups(gradient, groups)
        normalised = (wide - mean) * deviation
        sum_dy = dy.sum((1, 3, 4), keepdim=True)
        sum_dy_normalised = (dy * normalised).sum((1, 3, 4), keepdim=True)
        values = wide.shape[1] * wide.shape[3] * wide.shape[4]
        dx = (dy - (sum_dy + normalised * sum_dy_normalised) / values) * (deviation * _by_channels(weight))
        d_weight, d_bias = (
            s.flatten(1).sum_to_size(weight.shape).to(weight.dtype) for s in (sum_dy_normalised, sum_dy)
        )
        return dx.to(x.dtype).view_as(x), d_weight, d_bias, None, None


def _by_groups(x: Tensor, groups: int) -> Tensor:
    """(N, C, H, W) -> (groups, N / groups, C, H, W), in float32 at least."""
    wide: Tensor = x.to(torch.promote_types(x.dtype, torch.float32)).view(groups, -1, *x.shape[1:])
    return wide


def _by_channels(parameter: Tensor) -> Tensor:
    """(C,) or (groups, C) -> what goes with (groups, N / groups, C, H, W)."""
    return parameter.view(-1, 1, parameter.shape[-1], 1, 1)
