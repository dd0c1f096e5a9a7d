"""The paper's nets once more, as plain functions, for tests to check the package against.

Written from Fig. 4 and the Appendix, branch by branch, and deliberately unlike the package: no modules, no table of
placements. Parameters come in a dictionary with the names of the package's state dict.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


class ReferenceNet:
    """Forward pass of one net.

    Args:
        state: Parameters and buffers by name. Moving averages are updated in place in training.
        bottleneck: Whether units have three layers (1x1, 3x3, 1x1) or two (3x3, 3x3).
        placement: One of the five of Fig. 4.
        n: Units a stage.
    """

    def __init__(self, state: Mapping[str, Tensor], *, bottleneck: bool, placement: str, n: int) -> None:
        self.state, self.bottleneck, self.placement, self.n = state, bottleneck, placement, n
        self.training = True

    def conv(self, name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = self.state[f"{name}.weight"]
        return F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)

    def bn(self, name: str, x: Tensor) -> Tensor:
        s = self.state
        return F.batch_norm(
            x,
            s[f"{name}.running_mean"],
            s[f"{name}.running_var"],
            s[f"{name}.weight"],
            s[f"{name}.bias"],
            training=self.training,
            momentum=0.1,
            eps=1e-5,
        )

    def change_dimensions(self, unit: str, x: Tensor, channels: int, stride: int) -> Tensor:
        if not self.bottleneck:  # option A
            shape = (len(x), channels, (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2)
            widened = torch.zeros(shape, dtype=x.dtype).contiguous(memory_format=torch.channels_last)
            widened[:, : x.shape[1]] = x[:, :, ::stride, ::stride]
            return widened
        projected = self.conv(f"{unit}.shortcut.conv", x, stride)
        if self.placement in ("original", "relu_before_addition", "relu_only_preact"):
            projected = self.bn(f"{unit}.shortcut.bn", projected)
        return projected

    def unit(self, name: str, x: Tensor, channels: int, stride: int, *, first: bool) -> Tensor:
        layers = 3 if self.bottleneck else 2
        changes = stride == 2 or channels != x.shape[1]
        r = f"{name}.residual"

        def weight_layers(y: Tensor) -> Tensor:
            """W - BN - ReLU - W (- BN - ReLU - W)."""
            for k in range(1, layers):
                y = self.conv(f"{r}.conv{k}", y, stride if k == 1 else 1)
                y = F.relu(self.bn(f"{r}.bn{k}", y))
            return self.conv(f"{r}.conv{layers}", y)

        if self.placement == "preact":
            a = F.relu(self.bn(f"{name}.preactivation.bn", x))
            h = a if first else x
            if changes:
                h = self.change_dimensions(name, a, channels, stride)
            return h + weight_layers(a)
        if self.placement == "relu_only_preact":
            a = F.relu(x)
            h = a if first else x
            if changes:
                h = self.change_dimensions(name, a, channels, stride)
            return h + self.bn(f"{r}.bn{layers}", weight_layers(a))
        h = self.change_dimensions(name, x, channels, stride) if changes else x
        if self.placement == "original":
            return F.relu(h + self.bn(f"{r}.bn{layers}", weight_layers(x)))
        if self.placement == "bn_after_addition":
            return F.relu(self.bn(f"{name}.after_addition.bn", h + weight_layers(x)))
        if self.placement == "relu_before_addition":
            return h + F.relu(self.bn(f"{r}.bn{layers}", weight_layers(x)))
        raise AssertionError(self.placement)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.conv("stem.conv", x)
        if self.placement != "preact":
            y = self.bn("stem.bn", y)
        if self.placement not in ("preact", "relu_only_preact"):
            y = F.relu(y)
        for stage in range(3):
            channels = (64, 128, 256)[stage] if self.bottleneck else (16, 32, 64)[stage]
            for u in range(self.n):
                stride = 2 if stage and not u else 1
                y = self.unit(f"stages.{stage}.{u}", y, channels, stride, first=stage == u == 0)
        if self.placement == "preact":
            y = self.bn("tail.bn", y)
        if self.placement in ("preact", "relu_only_preact"):
            y = F.relu(y)
        return F.linear(F.adaptive_avg_pool2d(y, 1).flatten(1), self.state["fc.weight"], self.state["fc.bias"])
