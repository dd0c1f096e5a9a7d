"""The paper's nets as torch modules. Importing this package registers every name of the catalogue with timm."""

from paperbench.models.residual_net import ResidualNet
from paperbench.models.residual_unit import ResidualUnit

__all__ = ["ResidualNet", "ResidualUnit"]
