"""The paper's nets as torch modules. Importing this package registers every net of the catalogue with timm."""

from paperbench.models.residual_net import ResidualNet
from paperbench.models.residual_unit import ResidualUnit

__all__ = ["ResidualNet", "ResidualUnit"]
