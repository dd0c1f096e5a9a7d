"""The nets of "Identity Mappings in Deep Residual Networks", registered with timm.

Source: He et al., arXiv:1603.05027 (the paper) and arXiv:1512.03385 (v1); where both are silent, the authors' released
Torch code (github.com/KaimingHe/resnet-1k-layers) and the harness that it plugs into (facebookarchive/fb.resnet.torch).
docs/decisions.md lists those decisions. `paperbench.catalogue` lists the names, `paperbench.architecture`
lays out the layers of each net.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Optional, Union

import torch
import torch.nn.functional as F
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from paperbench.architecture import num_features, parameters, stem, tail, units
from paperbench.catalogue import ARGUMENTS, DATASETS, FAMILIES, NETS, Net, checked, resolve, tags
from paperbench.errors import PaperbenchError
from paperbench.models.parts import MeanImage, component, components, convolution
from paperbench.models.residual_unit import ResidualUnit
from paperbench.models.shortcuts import Addition
from paperbench.models.stage import Stage
from paperbench.models.weights_file import check_weights
from paperbench.specs.recipe import Initialisation

__all__ = ["ResidualNet"]  # a list: timm's decorator appends the entry points


class ResidualNet(nn.Module):
    """A residual net: convolution, stages of residual units, global average pooling, classifier.

    Args:
        net: See `paperbench.catalogue.resolve`.
        global_pool: timm's name of the head's pooling; the paper uses "avg".
        drop_rate: Probability of dropout before the classifier, as timm has it; the paper has none.
        mean_image: Shape (in_chans, H, W) of a mean image that the net itself subtracts; see `runs/export.py`.

    Attributes:
        feature_info: The feature levels of `forward_intermediates`: the input of the max pooling, if the net has one,
            and the output of each stage.

    Shape: (N, net.in_chans, H, W) -> (N, net.num_classes). The paper's images have H = W = 32 (CIFAR), 224 or 320.
    """

    def __init__(
        self, net: Net, global_pool: str = "avg", drop_rate: float = 0.0, mean_image: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.net, self.drop_rate = net, drop_rate
        self.num_classes = net.num_classes
        self.in_chans = net.in_chans
        self.feature_info: list[dict[str, Any]] = []

        first = stem(net)
        channels = first.convolution.outputs
        self.stem = nn.Sequential()
        if mean_image is not None:
            self.stem.add_module("mean", MeanImage(mean_image))
        self.stem.add_module("conv", convolution(first.convolution))
        for name in first.components:
            self.stem.add_module(name, component(name, channels))
        reduction = first.convolution.stride
        self._stem_level = -1  # index of the stem layer that gives the first feature level
        if first.pools:
            self._add_feature(channels, reduction, f"stem.{('conv', *first.components)[-1]}")
            self._stem_level = len(self.stem) - 1
            self.stem.add_module("pool", nn.MaxPool2d(3, 2, padding=1))
            reduction *= 2

        self._first_stage_level = len(self.feature_info)
        self.stages = nn.Sequential()
        for unit in units(net):
            if unit.index == 0:
                stage = Stage()
                self.stages.append(stage)
                reduction *= unit.stride
                self._add_feature(unit.out_channels, reduction, f"stages.{unit.stage}")
            stage.append(ResidualUnit(net, unit))

        self._num_levels = len(self.feature_info)
        self.num_features = self.head_hidden_size = num_features(net)
        self.tail = components(tail(net), self.num_features)
        found, stated = sum(p.numel() for p in self.parameters()), parameters(replace(net, num_classes=0))
        if found != stated:  # which is wrong in parts that somebody has registered
            what = f"{found:,} parameters without its classifier; its placement and shortcut state {stated:,}"
            raise PaperbenchError(f"The net has {what}. Correct `parameters` of a component, or the steps of a gate.")
        self.global_pool: nn.Module
        self.fc: nn.Module
        self.reset_classifier(net.num_classes, global_pool)
        self.init_weights()

    def _add_feature(self, channels: int, reduction: int, module: str) -> None:
        self.feature_info.append({"num_chs": channels, "reduction": reduction, "module": module})

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None, method: Initialisation = "fan_out") -> None:
        """Initialise all parameters and reset BN's running statistics.

        He normal for convolutions (the paper's [23]; fan-out as in the authors' code), including gates unless
        `net.gate_init` is "gaussian"; gate bias b_g from `net.gate_bias`; BN scale 1 and shift 0. The classifier
        follows Torch: weights uniform within 1/sqrt(inputs), bias 0. Other modules reset their own parameters.

        Args:
            generator: Source of randomness; torch's default generator if None.
            method: Of convolutions. "fan_out" or "fan_in": the fan in He's variance 2 / fan. "orthogonal": orthogonal
                as matrices of (outputs, inputs x kernel^2), with He's gain, sqrt(2), for the half of the signal that
                ReLU takes. W W^T = 2 does not make the convolution an isometry, because patches overlap. Classifier and
                Gaussian gates are those that He's method draws.
        """
        fan: Literal["fan_out", "fan_in"] = "fan_in" if method == "fan_in" else "fan_out"
        again = (generator or torch.default_generator).clone_state() if method == "orthogonal" else None
        own: set[nn.Module] = set()
        for module in self.modules():
            if isinstance(module, Addition):
                own |= module.init_weights(generator)
            elif isinstance(module, nn.Conv2d) and module not in own:
                nn.init.kaiming_normal_(module.weight, mode=fan, nonlinearity="relu", generator=generator)
                if again:
                    module.weight.copy_(_orthogonal(module.weight.shape, again))
            elif isinstance(module, nn.Linear):
                _init_classifier(module, generator)
            elif module not in own and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns for layer-wise learning rates: one group per unit, or per stage if `coarse`."""
        units_then_tail = [(r"^stages\.(\d+)\.(\d+)", None), (r"^tail", (99999,))]
        return {"stem": r"^stem", "blocks": r"^stages\.(\d+)" if coarse else units_then_tail}

    def set_grad_checkpointing(self, enable: bool = True, has_dropout: bool = True) -> None:
        """Turn recomputation of the residual units in the backward pass on or off; see `Stage`."""
        for module in self.modules():
            if isinstance(module, Stage):
                module.grad_checkpointing, module.has_dropout = enable, has_dropout

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier, and the pooling unless `global_pool` is None.

        Args:
            num_classes: Outputs of the classifier; 0 for no classifier.
            global_pool: timm's name of the pooling; "" for no pooling.
        """
        self.num_classes = num_classes = checked("a net", "num_classes", num_classes)
        self.net = replace(self.net, num_classes=num_classes)
        if global_pool is not None:
            pool: Any = SelectAdaptivePool2d(pool_type=global_pool, flatten=bool(global_pool))
            self.global_pool, self.head_hidden_size = pool, self.num_features * pool.feat_mult()
        self.fc = nn.Identity()
        if num_classes > 0:
            like = self.get_parameter("stem.conv.weight")
            self.fc = nn.Linear(self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype)
            _init_classifier(self.fc, None)
        self.global_pool.train(self.training)
        self.fc.train(self.training)

    def forward_features(self, x: Tensor) -> Tensor:
        """Compute everything but the head: (N, in_chans, H, W) -> (N, num_features, h, w) with h = H/4 or H/32."""
        y: Tensor = self.tail(self.stages(self.stem(x)))
        return y

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute the head: (N, num_features, h, w) -> (N, num_classes), or the pooled features if `pre_logits`."""
        x = self.global_pool(x)
        if self.drop_rate > 0:
            x = F.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Optional[Union[int, list[int]]] = None,  # noqa: UP007, UP045  # TorchScript
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Union[list[Tensor], tuple[Tensor, list[Tensor]]]:  # noqa: UP007
        """Return the activations at the levels of `feature_info`.

        Args:
            x: Images (N, in_chans, H, W).
            indices: Indices of the levels, in the order of the result; the last n levels if a number n; all if None.
            norm: Apply the tail (the extra activation of nets with pre-activation) to the last level.
            stop_early: Stop after the last requested level.
            output_fmt: Layout of the levels, "NCHW" or "NHWC".
            intermediates_only: Return only the levels.

        Returns:
            The final features, as from `forward_features` unless `stop_early`, and the levels.

        Raises:
            ValueError: Unknown output format.
        """
        if output_fmt != "NCHW" and output_fmt != "NHWC":
            raise ValueError(f"output_fmt must be NCHW or NHWC, not {output_fmt}.")
        wanted, last = feature_take_indices(self._num_levels, indices)
        found: dict[int, Tensor] = {}
        for position, layer in enumerate(self.stem):
            if not (stop_early and last in found):
                x = layer(x)
                if position == self._stem_level:
                    found[0] = x
        for level, stage in enumerate(self.stages, self._first_stage_level):
            if not (stop_early and last in found):
                x = stage(x)
                found[level] = x
        features = x
        if self._num_levels - 1 in found:
            features = self.tail(x)
            if norm:
                found[self._num_levels - 1] = features
        levels: list[Tensor] = []
        for level in wanted:
            if level in found:  # pruning may have removed it
                x = found[level]
                levels.append(x if output_fmt == "NCHW" else x.permute(0, 2, 3, 1))
        if intermediates_only:
            return levels
        return features, levels

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove all layers after the last of the given levels of `feature_info`.

        Args:
            indices: As in `forward_intermediates`.
            prune_norm: Remove the tail even if the last stage stays.
            prune_head: Remove pooling and classifier even if the last stage stays.

        Returns:
            The indices of the kept levels, counted from 0.
        """
        wanted, last = feature_take_indices(self._num_levels, indices)
        is_cut = last < self._num_levels - 1
        self.stages = self.stages[: last + 1 - self._first_stage_level]
        if last < self._first_stage_level:
            del self.stem.pool
        if is_cut:
            self.num_features = self.head_hidden_size = self.feature_info[last]["num_chs"]
        if is_cut or prune_norm:
            self.tail = nn.Identity()
        if is_cut or prune_head:
            self.reset_classifier(0, "")
        return wanted


def _orthogonal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return orthogonal weights from one thread, because the decomposition rounds differently in several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return nn.init.orthogonal_(torch.empty(shape, device="cpu"), gain=2**0.5, generator=generator)
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def _init_classifier(classifier: nn.Linear, generator: torch.Generator | None) -> None:
    bound = classifier.in_features**-0.5
    nn.init.uniform_(classifier.weight, -bound, bound, generator=generator)
    nn.init.zeros_(classifier.bias)


_CHANNEL_MEANS = {
    "cifar10": (0.4914, 0.4822, 0.4465),
    "cifar100": (0.5071, 0.4865, 0.4409),
    "imagenet": (0.485, 0.456, 0.406),
}
"""Channel means of the training sets for pixels in [0, 1], as commonly published. A test checks those of CIFAR-10."""


def _cfg(tag: str) -> dict[str, Any]:
    """Return timm's data configuration of a tag, as close to the paper's recipe as timm allows.

    The recipe subtracts the mean image of the training set; timm has one mean per channel. Neither divides by a std.
    """
    size = DATASETS[tag].size
    cfg = {
        "url": "",
        "num_classes": DATASETS[tag].num_classes,
        "input_size": (3, size, size),
        "pool_size": (8, 8) if size == 32 else (7, 7),
        "crop_pct": 1.0 if size == 32 else 0.875,
        "interpolation": "bilinear",
        "mean": _CHANNEL_MEANS[tag],
        "std": (1.0, 1.0, 1.0),
        "first_conv": "stem.conv",
        "classifier": "fc",
        "paper_name": "Identity Mappings in Deep Residual Networks",
        "paper_ids": "arXiv:1603.05027",
    }
    if size > 32:  # "a single 320x320 crop from s = 320", Sec. 5
        cfg |= {"test_input_size": (3, 320, 320), "test_crop_pct": 1.0}
    return cfg


default_cfgs = generate_default_cfgs({f"{name}.{tag}": _cfg(tag) for name in NETS for tag in tags(name)})


def _create_residual_net(name: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    tag = kwargs.get("pretrained_cfg")
    if isinstance(tag, str):
        resolve(f"{name}.{tag}")
    given = {**(tag if isinstance(tag, dict) else {}), **(kwargs.get("pretrained_cfg_overlay") or {})}
    file = Path(given["file"]) if pretrained and given.get("file") else None
    if file and given.get("source") == "local-dir" and (inside := file / "model.safetensors").exists():
        file = inside

    def build(
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: Any = None,
        dtype: Any = None,
        mean_image: Sequence[int] | None = None,
        **arguments: Any,
    ) -> ResidualNet:
        if drop_path_rate:  # timm's scripts always pass it, as 0
            raise PaperbenchError(
                "drop_path_rate must be 0: no net here drops whole units. For dropout in the residual branches use "
                "residual_dropout, for dropout on the shortcuts, Fig. 2(f), shortcut='dropout'."
            )
        if not 0 <= drop_rate <= 1:
            raise PaperbenchError(f"drop_rate must be a probability from 0 to 1, not {drop_rate}.")
        net = resolve(name, **arguments)
        if net.num_classes and not global_pool:
            raise PaperbenchError("A classifier needs pooled features: use num_classes=0 with global_pool=''.")
        if mean_image is not None and (len(mean_image) != 3 or mean_image[0] != net.in_chans or min(mean_image) < 1):
            raise PaperbenchError(f"mean_image must be the shape of an image of {net.in_chans} channels, [C, H, W].")
        if file and file.suffix == ".safetensors":
            check_weights(file, net)
        with torch.device(device) if device is not None else nullcontext():
            model = ResidualNet(net, global_pool, float(drop_rate), mean_image)
        return model if dtype is None else model.to(dtype)

    levels = tuple(range(5 if FAMILIES[NETS[name].family].pools_early else 3))
    feature_cfg = {"out_indices": levels, "flatten_sequential": True, "feature_cls": "getter"}
    model: nn.Module = build_model_with_cfg(build, name, pretrained, feature_cfg=feature_cfg, **kwargs)
    return model


def _entry_point(name: str) -> Callable[..., nn.Module]:
    def entry_point(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create_residual_net(name, pretrained, **kwargs)

    entry_point.__name__ = entry_point.__qualname__ = name
    entry_point.__doc__ = f"{NETS[name]}. Arguments: {', '.join(ARGUMENTS)}, global_pool, drop_rate, mean_image."
    return entry_point


for _name in NETS:
    globals()[_name] = register_model(_entry_point(_name))
