"""paperbench: does "Identity Mappings in Deep Residual Networks" reproduce?

Importing this package makes the paper's nets known to timm, now if timm is loaded, else as soon as it is, and loads
neither timm nor torch by itself:

    import paperbench, timm
    model = timm.create_model("preact_resnet1001")

Its tables and their verdicts are objects:

    paperbench.load_table("table2").compare("results/")
"""

from __future__ import annotations

from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING

from wrapt import register_post_import_hook

if TYPE_CHECKING:
    from paperbench.api import PublishedTable

__version__ = "0.1.0"


def load_table(table: str, root: str | PathLike[str] | None = None) -> PublishedTable:
    """A table of the paper; see `paperbench.api.load_table`."""
    from paperbench import api

    return api.load_table(table, root)


def _register_nets(_timm: ModuleType) -> None:
    import paperbench.models  # noqa: F401


register_post_import_hook(_register_nets, "timm")
