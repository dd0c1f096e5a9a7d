"""The paper's nets as torch modules. Importing this package registers every name of the catalogue with timm."""

from paperbench.models.cifar_resnet import CifarResNet
from paperbench.models.residual_unit import ResidualUnit
from paperbench.models.shortcuts import Projection, ZeroPadShortcut

__all__ = ["CifarResNet", "Projection", "ResidualUnit", "ZeroPadShortcut"]
