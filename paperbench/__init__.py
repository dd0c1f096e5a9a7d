"""paperbench: does "Identity Mappings in Deep Residual Networks" reproduce?

Importing this package registers the paper's nets with timm, as soon as timm is imported. It imports neither timm nor
torch by itself:

    import paperbench, timm
    model = timm.create_model("preact_resnet1001")

Tables, runs and verdicts are objects (see `paperbench.api`):

    paperbench.load_table("table2").compare("results/")
    paperbench.run(paperbench.plan("table2", profile="smoke"))
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from wrapt import register_post_import_hook

if TYPE_CHECKING:
    from paperbench.api import analyze, evaluate, load_table, make_page, plan, run

__all__ = ["analyze", "evaluate", "load_table", "make_page", "plan", "run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the functions of `api` on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paperbench import api

    return getattr(api, name)


def _register_nets(_timm: ModuleType) -> None:
    import paperbench.models  # noqa: F401


register_post_import_hook(_register_nets, "timm")
