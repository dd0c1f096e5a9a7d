"""Batch norm in groups: each group of images has statistics of its own, as on the paper's GPUs, in one operation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """BN that splits a batch into groups of so many images, one after the other, and normalises each by itself.

    What `nn.BatchNorm2d` makes of the groups one by one, the moving averages included, up to rounding: but a net can
    take the whole batch at once. With one group, and in evaluation, it computes as `nn.BatchNorm2d`.

    Args:
        like: The layer whose parameters, buffers and settings it has.
        group_size: Images a group.

    Attributes:
        groups_averaged: None: statistics go into the moving averages. A number: they go into plain averages over so
            many groups so far, which it counts on.

    Raises:
        ValueError: The layer has no momentum, but averages over all batches; in training, a batch is no multiple of the
            group.

    Shape: (N, C, H, W) with N a multiple of `group_size` in training -> the same.
    """

    def __init__(self, like: nn.BatchNorm2d, group_size: int) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, device="meta")
        if like.momentum is None:
            raise ValueError("BN with cumulative averages cannot be grouped.")
        self.group_size, self._share = group_size, like.momentum
        self.groups_averaged: int | None = None
        self.weight, self.bias = like.weight, like.bias
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = None  # a kernel a layer and step for a number that the trainer knows
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        groups, left = divmod(x.shape[0], self.group_size)
        if left or not groups:
            raise ValueError(f"{x.shape[0]} images are no multiple of a group of {self.group_size}.")
        if groups == 1:
            share = self._share if self.groups_averaged is None else 1 / (self.groups_averaged + 1)
            self._count(1)
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, share, self.eps)
        y, mean, variance = _Normalised.apply(x, self.weight, self.bias, groups, self.eps)
        values = self.group_size * x.shape[2] * x.shape[3]
        self._average(mean, variance * (values / (values - 1)))
        normalised: Tensor = y
        return normalised

    @torch.no_grad()
    def _average(self, means: Tensor, variances: Tensor) -> None:
        """Take in the groups' statistics, (groups, C) each."""
        for running, seen in ((self.running_mean, means), (self.running_var, variances)):
            if running is None:
                continue
            if self.groups_averaged is not None:
                running.lerp_(seen.mean(0), len(seen) / (self.groups_averaged + len(seen)))
                continue
            for group in seen.unbind():
                running.mul_(1 - self._share).add_(group, alpha=self._share)
        self._count(len(means))

    def _count(self, groups: int) -> None:
        if self.groups_averaged is not None:
            self.groups_averaged += groups


class _Normalised(torch.autograd.Function):
    """(x - mean) / std * weight + bias by groups; also the groups' means and (biased) variances, (groups, C) each.

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
        d_weight = sum_dy_normalised.sum(0).flatten().to(weight.dtype)
        d_bias = sum_dy.sum(0).flatten().to(weight.dtype)
        return dx.to(x.dtype).view_as(x), d_weight, d_bias, None, None


def _by_groups(x: Tensor, groups: int) -> Tensor:
    """(N, C, H, W) -> (groups, N / groups, C, H, W), in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).view(groups, -1, *x.shape[1:])


def _by_channels(parameter: Tensor) -> Tensor:
    return parameter.view(1, 1, -1, 1, 1)
