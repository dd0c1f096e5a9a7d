from __future__ import annotations

import re

from paperbench.architecture import units
from paperbench.catalogue import NETS, SHORTCUTS, resolve
from paperbench.report.description import describe
from tests.golden import assert_golden

UNIT = re.compile(r"stage (\d+), units? (\d+)(?: to (\d+): (\d+) equal units)?, to (\d+ x \d+ x \d+)\. ")


def test_every_unit_of_every_net_is_described_once() -> None:
    for net in (*NETS.values(), *(resolve("preact_resnet164", shortcut=shortcut) for shortcut in SHORTCUTS)):
        lines = describe(net)
        assert all(line.isascii() and line.isprintable() for line in lines)
        places = [place for line in lines if (place := UNIT.match(line))]
        counts = [int(place[3] or place[2]) - int(place[2]) + 1 for place in places]
        assert counts == [int(place[4] or 1) for place in places]
        assert sum(counts) == len(list(units(net)))


def test_nets_in_words() -> None:
    nets: list[tuple[str, dict[str, object]]] = [
        *((f"resnet110_{placement}", {}) for placement in ("bn_after_addition", "relu_before_addition")),
        *((f"{name}_resnet{depth}", {}) for name in ("original", "preact") for depth in (110, 164, 50)),
        *((f"resnet110_{name}", {}) for name in ("relu_only_preact", "conv_shortcut", "constant_scaling")),
        *((f"resnet110_{name}", {}) for name in ("shortcut_only_gating", "dropout_shortcut")),
        ("original_resnet110_1layer", {}),
        ("original_resnet50", {"num_classes": 0}),
        ("preact_resnet164", {"transition_shortcut": "raw"}),
        ("preact_resnet164", {"stride_in": "middle", "residual_dropout": 0.3}),
        ("resnet110_constant_scaling", {"shortcut_scale": 1.0, "residual_scale": 0.25}),
        ("resnet110_exclusive_gating", {"gate_bias": -5.5}),
        ("resnet110_exclusive_gating", {"gate_init": "gaussian"}),
        ("resnet110_dropout_shortcut", {"inverted": True}),
        ("preact_resnet110", {"num_classes": 100, "in_chans": 1}),
        ("preact_resnet110", {"placement": "original", "shortcut": "conv"}),
        ("preact_resnet110", {"depth": 26}),
    ]
    texts = (
        "\n".join((f"{name} {changes or ''}".strip(), *describe(resolve(name, **changes)))) for name, changes in nets
    )
    assert_golden("nets_in_words", "\n\n".join(texts))
