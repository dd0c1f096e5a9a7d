"""The CIFAR nets of "Identity Mappings in Deep Residual Networks", registered with timm.

Source: He et al., arXiv:1603.05027 (the paper) and arXiv:1512.03385 (v1); where both are silent, the authors' released
Torch code (github.com/KaimingHe/resnet-1k-layers) and the harness that it plugs into (facebookarchive/fb.resnet.torch).
README.md and ARCHITECTURE.md list those decisions. `paperbench.catalogue` holds the names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from paperbench.catalogue import ARGUMENTS, FAMILIES, NETS, PLACEMENTS, STAGE_WIDTHS, Net, resolve
from paperbench.models.residual_unit import ResidualUnit, components

__all__ = ["CifarResNet"]  # a list: timm's decorator adds the entry points to it

FanMode = Literal["fan_out", "fan_in"]


class CifarResNet(nn.Module):
    """A residual net for 32x32 images: convolution, three stages of units, global average pooling, classifier.

    Args:
        net: What to build; see `paperbench.catalogue.resolve`.
        global_pool: Pooling of the head, by timm's names; the paper averages.

    Shape: (N, net.in_chans, H, W) -> (N, net.num_classes). The paper's images have H = W = 32.
    """

    def __init__(self, net: Net, global_pool: str = "avg") -> None:
        super().__init__()
        family, placement = FAMILIES[net.family], PLACEMENTS[net.placement]
        self.net = net
        self.num_classes = net.num_classes
        self.in_chans = net.in_chans

        channels = STAGE_WIDTHS[0]
        self.stem = nn.Sequential()
        self.stem.add_module("conv", nn.Conv2d(net.in_chans, channels, 3, padding=1, bias=False))
        for name in placement.stem:
            self.stem.add_module(name, nn.BatchNorm2d(channels) if name == "bn" else nn.ReLU())

        self.stages = nn.Sequential()
        self.feature_info: list[dict[str, Any]] = []
        for index, width in enumerate(STAGE_WIDTHS):
            stage = nn.Sequential()
            for u in range(net.units_per_stage):
                stage.append(
                    ResidualUnit(
                        family.kernels,
                        placement,
                        net.shortcut_option,
                        in_channels=channels,
                        width=width,
                        out_channels=width * family.expansion,
                        stride=2 if index > 0 and u == 0 else 1,
                        is_first=index == 0 and u == 0,
                    )
                )
                channels = width * family.expansion
            self.stages.append(stage)
            self.feature_info.append({"num_chs": channels, "reduction": 2**index, "module": f"stages.{index}"})

        self.tail = components(placement.tail, channels)
        self.num_features = self.head_hidden_size = channels
        self.global_pool: nn.Module
        self.fc: nn.Module
        self.reset_classifier(net.num_classes, global_pool)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None, fan: FanMode = "fan_out") -> None:
        """Draw all parameters anew.

        He normal for convolutions (the paper's [23]; fan-out as in the authors' code), BN scale 1 and shift 0. The
        classifier follows Torch: weights uniform within 1/sqrt(inputs), bias 0.

        Args:
            generator: Source of randomness; torch's default generator if None.
            fan: Whether He's variance 2 / fan counts a filter's outputs or its inputs.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu", generator=generator)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                _init_classifier(module, generator)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head: `num_classes` outputs (0: none), and another pooling if one is named ("": none)."""
        self.num_classes = num_classes
        self.net = replace(self.net, num_classes=num_classes)
        if global_pool is not None:
            self.global_pool = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))
        self.fc = nn.Identity()
        if num_classes > 0:
            self.fc = nn.Linear(self.num_features, num_classes)
            _init_classifier(self.fc, None)

    def forward_features(self, x: Tensor) -> Tensor:
        """(N, in_chans, H, W) -> (N, num_features, H/4, W/4): all but the head."""
        y: Tensor = self.tail(self.stages(self.stem(x)))
        return y

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """(N, num_features, h, w) -> (N, num_classes), or the pooled features if `pre_logits`."""
        x = self.global_pool(x)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


@torch.no_grad()
def _init_classifier(classifier: nn.Linear, generator: torch.Generator | None) -> None:
    bound = classifier.in_features**-0.5
    nn.init.uniform_(classifier.weight, -bound, bound, generator=generator)
    nn.init.zeros_(classifier.bias)


def _cfg(name: str) -> dict[str, Any]:
    """The data configuration, as close as timm can say what the paper's recipe feeds the net.

    The recipe subtracts the mean image of the training set; timm knows one mean a channel. Neither divides by a std.
    """
    return {
        "url": "",
        "num_classes": NETS[name].num_classes,
        "input_size": (3, 32, 32),
        "pool_size": (8, 8),
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": (0.4914, 0.4822, 0.4465),
        "std": (1.0, 1.0, 1.0),
        "first_conv": "stem.conv",
        "classifier": "fc",
        "paper_name": "Identity Mappings in Deep Residual Networks",
        "paper_ids": "arXiv:1603.05027",
    }


default_cfgs = generate_default_cfgs({f"{name}.cifar10": _cfg(name) for name in NETS})


def _create_cifar_resnet(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    def build(global_pool: str = "avg", **arguments: Any) -> CifarResNet:
        return CifarResNet(resolve(name, **arguments), global_pool)

    model: nn.Module = build_model_with_cfg(
        build, name, pretrained, feature_cfg={"out_indices": (0, 1, 2), "flatten_sequential": True}, **kwargs
    )
    return model


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def entry_point(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create_cifar_resnet(name, pretrained, **kwargs)

    entry_point.__name__ = entry_point.__qualname__ = name
    entry_point.__doc__ = f"{NETS[name]}. Arguments: {', '.join(ARGUMENTS)}, global_pool."
    return entry_point


for _name in NETS:
    register_model(_entry_point(_name))
