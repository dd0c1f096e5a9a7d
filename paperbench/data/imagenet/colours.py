"""What happens to crops on the device: colours, mean and mirroring, in float32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paperbench.data.imagenet.crops import CROP_WORDS
from paperbench.data.imagenet.draws import Words, below, normal, uniform
from paperbench.specs.recipe import ChannelValues, Photographs

_LIGHTING, _ORDER, _JITTER, _FLIP = slice(CROP_WORDS.stop, CROP_WORDS.stop + 4), 54, slice(55, 58), 58
"""The words of an image that choose its colours and mirroring."""
_GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey value (fb.resnet.torch)."""
BRIGHTNESS, CONTRAST, SATURATION = range(3)
_ORDERS = torch.tensor([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])


class ColourChoices(NamedTuple):
    """The random choices of a batch.

    Attributes:
        lighting: What is added to each channel, (N, 3) float32.
        order: Which of brightness, contrast and saturation changes first, second and third, (N, 3) int64.
        factors: By what each of the three is multiplied, (N, 3) float32; 1 changes nothing.
        mirrored: (N,) bool.
    """

    lighting: Tensor
    order: Tensor
    factors: Tensor
    mirrored: Tensor


def draw_colours(settings: Photographs, words: Words, *, flip: bool) -> ColourChoices:
    """Return the choices for images with these words, (N, WORDS_PER_IMAGE)."""
    lighting = np.zeros((len(words), 3))
    if settings.lighting:
        factors = settings.lighting.std * normal(words[:, _LIGHTING])[:, :3]
        lighting = factors * settings.lighting.eigenvalues @ np.transpose(settings.lighting.eigenvectors)
    jitter = (2 * uniform(words[:, _JITTER]) - 1) * (settings.jitter or 0)
    return ColourChoices(
        torch.from_numpy(lighting.astype(np.float32)),
        _ORDERS[torch.from_numpy(below(words[:, _ORDER], len(_ORDERS)))],
        torch.from_numpy((1 + jitter).astype(np.float32)),
        torch.from_numpy((uniform(words[:, _FLIP]) < 0.5) & flip),
    )


class ColourTransform:
    """Converts crops to the net's input: jitter, lighting, (x - mean) / std, mirroring.

    Args:
        values: Mean and standard deviation of the channels, or the mean image of shape (crop, crop, 3), float32 in
            [0, 1].
        has_jitter: Whether brightness, contrast and saturation change.
        device: Where the crops are.
        layout: Memory layout of the result.
    """

    def __init__(
        self,
        values: ChannelValues | Tensor,
        *,
        has_jitter: bool,
        device: torch.device,
        layout: torch.memory_format = torch.channels_last,
    ) -> None:
        mean, std = (values, (1.0, 1.0, 1.0)) if isinstance(values, Tensor) else (torch.tensor(values.mean), values.std)
        self._mean, self._std = mean.to(device), torch.tensor(std, device=device)
        self._grey = torch.tensor(_GREY, device=device)
        self._has_jitter, self._layout = has_jitter, layout

    def __call__(self, pixels: Tensor, choices: ColourChoices | None = None) -> Tensor:
        """Return the input of shape (N, 3, crop, crop), float32.

        Args:
            pixels: Crops of shape (N, crop, crop, 3), uint8.
            choices: The random choices in training; None in a test.
        """
        x = pixels / 255
        if choices is not None:
            if self._has_jitter:
                x = self._jittered(x, choices)
            x = x + choices.lighting[:, None, None]
        x = (x - self._mean) / self._std
        if choices is not None:
            x = torch.where(choices.mirrored[:, None, None, None], x.flip(2), x)
        return x.permute(0, 3, 1, 2).contiguous(memory_format=self._layout)

    def _jittered(self, x: Tensor, choices: ColourChoices) -> Tensor:
        """Blend images with black, their mean grey or their grey version, in the order of each image."""
        for kind in choices.order.unbind(1):
            grey = (x * self._grey).sum(3, keepdim=True)
            mean = grey.mean((1, 2), keepdim=True)
            kind = kind[:, None, None, None]
            other = torch.where(kind == SATURATION, grey, mean) * (kind != BRIGHTNESS)
            factor = choices.factors.gather(1, kind[:, :, 0, 0])[:, :, None, None]
            x = factor * x + (1 - factor) * other
        return x
