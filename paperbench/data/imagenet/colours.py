"""What happens to crops on the device: colours, mean and mirroring, in float32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paperbench.data.imagenet.crops import CROP_WORDS
from paperbench.data.imagenet.draws import Words, normal, uniform
from paperbench.specs.recipe import ChannelValues, Photographs

_LIGHTING, _JITTER, _FLIP = slice(CROP_WORDS.stop, CROP_WORDS.stop + 4), slice(54, 57), 57
"""The words of an image that choose its colours and mirroring."""


class ColourChoices(NamedTuple):
    """The random choices of a batch.

    Attributes:
        lighting: What is added to each channel, (N, 3) float32.
        factors: By what brightness, contrast and saturation are multiplied, (N, 3) float32; 1 changes nothing.
        mirrored: (N,) bool.
    """

    lighting: Tensor
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
    """

    def __init__(self, values: ChannelValues | Tensor, *, has_jitter: bool, device: torch.device) -> None:
        mean, std = (values, (1, 1, 1)) if isinstance(values, Tensor) else (torch.tensor([[values.mean]]), values.std)
        self._mean = mean.permute(2, 0, 1).contiguous().to(device)
        self._std = torch.tensor(std, dtype=torch.float32, device=device).view(3, 1, 1)
        self._has_jitter = has_jitter

    def __call__(self, pixels: Tensor, choices: ColourChoices | None = None) -> Tensor:
        """Return the input of shape (N, 3, crop, crop), float32.

        Args:
            pixels: Crops of shape (N, crop, crop, 3), uint8.
            choices: The random choices in training; None in a test.
        """
        mean = self._mean
        if choices is not None:  # mirrored bytes and mean, and not the result, as that is larger
            mirrored = choices.mirrored[:, None, None, None]
            pixels = torch.where(mirrored, pixels.flip(2), pixels)
            mean = torch.where(mirrored, mean.flip(2), mean) - choices.lighting[:, :, None, None]
        x = pixels.permute(0, 3, 1, 2).contiguous() / 255
        if choices is not None and self._has_jitter:
            x = _jitter(x, choices.factors)
        return x.sub_(mean).div_(self._std).contiguous(memory_format=torch.channels_last)


def _jitter(x: Tensor, factors: Tensor) -> Tensor:
    """Multiply brightness, contrast and saturation: blend images with black, their mean grey and their grey version.

    The order makes no difference, because nothing is clamped: each is linear, contrast and saturation keep the mean
    grey, and brightness multiplies it.
    """
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    red, green, blue = x.split(1, 1)
    grey = 0.299 * red + 0.587 * green + 0.114 * blue  # fb.resnet.torch
    other = (1 - saturation) * contrast * grey + (1 - contrast) * grey.mean((2, 3), keepdim=True)
    jittered: Tensor = brightness * (saturation * contrast * x + other)
    return jittered
