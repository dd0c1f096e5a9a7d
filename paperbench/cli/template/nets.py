"""Nets of my own. A cell of the table in experiments/ names them as `nets.py:my_net`.

docs/extending.md shows how a file registers parts of residual units, such as another norm or shortcut, for the paper's
nets.
"""

from torch import nn


def my_net(num_classes: int, width: int = 32) -> nn.Module:
    """Return a plain net of four 3x3 convolutions, each followed by BN and ReLU.

    Any module will do that maps images (N, 3, 32, 32) to logits (N, num_classes).

    Args:
        num_classes: Given by paperbench: the classes of the data set.
        width: Channels of the first convolution; the others have more. A cell sets such arguments as `kwargs`.
    """
    layers: list[nn.Module] = []
    channels = 3
    for outputs, stride in ((width, 1), (width, 2), (2 * width, 2), (4 * width, 2)):  # 32x32, 16x16, 8x8, 4x4 pixels
        layers.append(nn.Conv2d(channels, outputs, kernel_size=3, stride=stride, padding=1, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
