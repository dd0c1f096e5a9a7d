"""A pytest plugin that restricts timm's own test suite to the nets of this package.

timm's tests take the names of the nets from `timm.list_models` during collection. The tests of features select nets by
timm's module names; here every such selection returns our nets.

With `--shallow`, every name is built at a small depth of its family. Names that then give the same net, such as
preact_resnet20 and preact_resnet56, are tested once. Without `--shallow`, the nets of over 1,000 layers get one batch
of noise when they are built, to set their BN statistics: with the initial statistics, every unit adds to the variance
of the signal, which is infinite after 300 units.

With `--checkpointed`, units are recomputed in the backward pass, and BN stays in evaluation mode, as when it is frozen.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import nn

import paperbench  # noqa: F401  # registers the nets
from paperbench.catalogue import NETS
from paperbench.models import ResidualNet

SHALLOW = {"basic": 8, "bottleneck": 11, "one_layer": 5, "imagenet_basic": 18, "imagenet_bottleneck": 50}
_list_all, _create = timm.list_models, timm.create_model


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shallow", action="store_true", help="build every net at a small depth of its family")
    parser.addoption("--checkpointed", action="store_true", help="recompute units, with BN in evaluation mode")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): of pytest-timeout, which need not be installed")
    timm.list_models = _list_ours
    timm.create_model = _create_shallow if config.getoption("--shallow") else _create_with_statistics
    if config.getoption("--checkpointed"):
        ResidualNet.train = lambda net, mode=True: nn.Module.train(net, False)  # type: ignore[method-assign]
        initialise = ResidualNet.__init__

        def initialise_checkpointed(net: ResidualNet, *args: Any, **kwargs: Any) -> None:
            initialise(net, *args, **kwargs)
            net.eval().set_grad_checkpointing()

        ResidualNet.__init__ = initialise_checkpointed  # type: ignore[method-assign]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that are parametrised with the names of other nets."""
    ours, others = [], []
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        name = str(parameters.get("model_name", "")).partition(".")[0]
        builds = item.name.partition("[")[0] != "test_model_default_cfgs"
        wanted = distinct_shallow_nets() if builds and config.getoption("--shallow") else set(NETS)
        (ours if name in wanted else others).append(item)
    items[:] = ours
    config.hook.pytest_deselected(items=others)


@cache
def distinct_shallow_nets() -> set[str]:
    """Return the first name of each distinct net at small depths."""
    found: dict[str, str] = {}
    for name, net in NETS.items():
        shallow = replace(net, depth=SHALLOW[net.family])
        found.setdefault(json.dumps(shallow.canonical(), sort_keys=True), name)
    return set(found.values())


def _list_ours(filter: str | list[str] = "", module: str | list[str] = "", **settings: Any) -> list[str]:  # noqa: A002
    names = _list_all(filter, module="residual_net" if module else "", **settings)
    return [name for name in names if name.partition(".")[0] in NETS]


def _create_shallow(name: str, **kwargs: Any) -> nn.Module:
    return _create(name, **{"depth": SHALLOW[NETS[name.partition(".")[0]].family], **kwargs})


def _create_with_statistics(name: str, **kwargs: Any) -> nn.Module:
    model: nn.Module = _create(name, **kwargs)
    if NETS[name.partition(".")[0]].depth > 1000 and next(model.parameters()).device.type != "meta":
        layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        for layer in layers:
            layer.momentum = 1.0
        with torch.no_grad():
            model.train()(torch.randn(4, 3, 32, 32))
        for layer in layers:
            layer.momentum = 0.1
    return model
