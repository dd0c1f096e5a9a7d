"""The paper's nets as torch modules. Importing this package registers every net of the catalogue with timm."""

from paperbench.models.parts import register
from paperbench.models.residual_net import ResidualNet
from paperbench.models.residual_unit import ResidualUnit
from paperbench.models.shortcuts import Addition

__all__ = ["Addition", "ResidualNet", "ResidualUnit", "register"]
