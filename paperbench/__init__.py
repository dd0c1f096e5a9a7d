"""paperbench: does "Identity Mappings in Deep Residual Networks" reproduce?

Importing this package makes the paper's nets known to timm, now if timm is loaded, else as soon as it is, and loads
neither timm nor torch by itself:

    import paperbench, timm
    model = timm.create_model("preact_resnet1001")
"""

from __future__ import annotations

from types import ModuleType

from wrapt import register_post_import_hook

__version__ = "0.1.0"


def _register_nets(_timm: ModuleType) -> None:
    import paperbench.models  # noqa: F401


register_post_import_hook(_register_nets, "timm")
