"""The catalogue of nets by name: family, placement of BN and ReLU, shortcut, and their figures in the paper.

Specs and models both read it, so a name means the same net in both. It never imports torch.

The vocabulary is that of He et al., "Identity Mappings in Deep Residual Networks" (ECCV 2016, arXiv:1603.05027), called
"the paper" below, and of "Deep Residual Learning for Image Recognition" (CVPR 2016, arXiv:1512.03385), called "v1".
"""

from typing import Any

from paperbench.catalogue.datasets import DATASETS
from paperbench.catalogue.families import FAMILIES
from paperbench.catalogue.nets import ARGUMENTS, NETS, Net, checked, resolve, tags
from paperbench.catalogue.own import AnyNet, OwnNet, find_file, is_function, own_net
from paperbench.catalogue.placements import COMPONENTS, PLACEMENTS, Component, Placement
from paperbench.catalogue.shortcuts import POOL, SHORTCUTS, Convolution, Shortcut

PARTS: dict[type, dict[str, Any]] = {Component: COMPONENTS, Placement: PLACEMENTS, Shortcut: SHORTCUTS}
"""What units are made of, by kind and name. `paperbench.models.register` adds to it."""

__all__ = [
    "ARGUMENTS",
    "COMPONENTS",
    "DATASETS",
    "FAMILIES",
    "NETS",
    "PARTS",
    "PLACEMENTS",
    "POOL",
    "SHORTCUTS",
    "AnyNet",
    "Component",
    "Convolution",
    "Net",
    "OwnNet",
    "Placement",
    "Shortcut",
    "checked",
    "find_file",
    "is_function",
    "own_net",
    "resolve",
    "tags",
]
