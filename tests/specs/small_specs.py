"""Two minimal tables, for tests that change their files: `one` on CIFAR-10, `two` on CIFAR-10 and ImageNet."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from paperbench.specs.table import Table, read_table
from paperbench.specs.yaml_file import SpecError

ONE, ONE_EXPECTED = "experiments/one.yaml", "expected/one.yaml"
TWO, TWO_EXPECTED = "experiments/two.yaml", "expected/two.yaml"
PROFILES = "experiments/profiles.yaml"
SMALL, LARGE = "experiments/recipes/small.yaml", "experiments/recipes/large.yaml"
REMOVED = object()
"""Value of a key to remove."""

_RECIPE = {
    "schema": 1,
    "recipe": "small",
    "source": "Appendix",
    "batch_size": 128,
    "iterations": 64000,
    "learning_rate": 0.1,
    "warm_up": {"learning_rate": 0.01, "iterations": 400},
    "drops": {"at": [32000, 48000], "factor": 0.1},
    "momentum": 0.9,
    "momentum_form": "caffe",
    "weight_decay": 0.0001,
    "initialisation": "fan_out",
    "input": "per_pixel_mean",
    "augmentation": {"padding": 4, "flip": True},
    "batch_norm": {"group": 64, "eps": 0.00001, "moving_average": 0.1, "at_test": "reestimated"},
    "monitoring": {"log_every": 100, "test_every": 1000, "checkpoint_every": 1000, "checkpoint_share": 0.01},
    "authors": {"framework": "Caffe", "images_per_gpu": 64, "precision": "fp32"},
    "silent": ["initialisation"],
}
_FILES: dict[str, dict[str, Any]] = {
    ONE: {
        "schema": 1,
        "table": "one",
        "title": "Units on CIFAR-10",
        "recipe": "small",
        "seeds": 5,
        "labels": {"on F": "before"},
        "columns": [{"id": "basic", "title": "ResNet-110"}, {"id": "deep", "title": "ResNet-164"}],
        "rows": [
            {
                "id": "original",
                "title": "original",
                "labels": {"on F": "1"},
                "dataset": "cifar10",
                "cells": {"basic": "original_resnet110"},
            },
            {
                "id": "preact",
                "title": "pre-activation",
                "dataset": "cifar10",
                "cells": {"basic": "preact_resnet110", "deep": "preact_resnet164"},
            },
            {
                "id": "gating",
                "title": "gating",
                "dataset": "cifar10",
                "cells": {"basic": {"model": "resnet110_exclusive_gating", "sweep": {"gate_bias": [0, -1]}}},
            },
        ],
    },
    ONE_EXPECTED: {
        "schema": 1,
        "table": "one",
        "source": {"paper": "A paper", "arxiv": "1603.05027", "table": "Table 1"},
        "defaults": {"statistic": "median", "n": 5, "tolerance": 0.5},
        "footnotes": {"†": "a footnote"},
        "cells": {
            "original": {"basic": {"value": 6.61, "std": 0.16, "std_source": "v1", "mark": "†", "note": "from v1"}},
            "preact": {"basic": 6.37, "deep": 5.46},
            "gating": {"basic": "fail"},
        },
        "literature": [{"id": "nin", "title": "NIN", "labels": {"on F": "1"}, "cells": {"basic": 8.81}}],
        "claims": [
            {
                "id": "preact_better",
                "says": "Pre-activation is better",
                "section": "Sec. 4.1",
                "kind": "lower",
                "measure": "test_error",
                "cells": ["preact/basic", "original/basic"],
            }
        ],
        "disputed": [{"cell": "original/basic", "circulates": "7", "paper": "6.61"}],
        "peers": [{"cell": "original/basic", "value": 6.5, "source": "a repository", "note": "best epoch"}],
    },
    TWO: {
        "schema": 1,
        "table": "two",
        "title": "Two data sets",
        "recipe": "small",
        "seeds": 5,
        "columns": [
            {"id": "cifar", "title": "CIFAR-10", "dataset": "cifar10"},
            {"id": "imagenet", "title": "ImageNet", "dataset": "imagenet"},
        ],
        "rows": [
            {"id": "baseline", "title": "baseline", "cells": {"cifar": "original_resnet110"}},
            {
                "id": "large",
                "title": "large",
                "recipe": "large",
                "evaluation": "crop224",
                "cells": {"imagenet": "original_resnet152"},
            },
        ],
    },
    TWO_EXPECTED: {
        "schema": 1,
        "table": "two",
        "source": {"paper": "A paper", "arxiv": "1603.05027", "table": "Table 2"},
        "defaults": {"statistic": "median", "n": 3, "tolerance": 0.3},
        "cells": {
            "baseline": {"cifar": {"same_as": "one/original/basic", "params": "1.7M"}},
            "large": {"imagenet": {"value": 23.0, "statistic": "single"}},
        },
    },
    PROFILES: {
        "schema": 1,
        "profiles": {
            "paper": {"title": "the paper's experiment"},
            "quick": {
                "title": "80 iterations on digits",
                "depth": {"basic": 14, "bottleneck": 20},
                "datasets": {
                    "digits": {
                        "replaces": ["cifar10"],
                        "recipe": {
                            "batch_size": 64,
                            "iterations": 80,
                            "warm_up": {"iterations": 5},
                            "drops": {"at": [50, 65]},
                            "batch_norm": {"group": 32},
                        },
                    },
                },
            },
        },
    },
    SMALL: _RECIPE,
    LARGE: {
        **_RECIPE,
        "recipe": "large",
        "warm_up": None,
        "augmentation": {"padding": 0, "flip": True},
        "photographs": {
            "decoder": "pillow",
            "interpolation": "bilinear",
            "crop": 224,
            "shorter_side": [256, 480],
            "mean_image_scale": 256,
        },
        "evaluations": {"crop224": {"crop": 224, "scale": 256}},
    },
}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


class SmallSpecs:
    """The files of both tables in a directory."""

    def __init__(self, root: Path) -> None:
        self.root, self._files = root, deepcopy(_FILES)
        for name in self._files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            self._write(name)

    def set(self, name: str, path: tuple[str | int, ...], value: Any) -> None:
        """Set, add or remove the value at a path of a file."""
        *parents, last = path
        holder: Any = self._files[name]
        for part in parents:
            holder = holder[part]
        if value is REMOVED:
            del holder[last]
        else:
            holder[last] = value
        self._write(name)

    def load(self, table: str = "one") -> Table:
        return read_table(table, self.root)

    def complaints(self, table: str = "one") -> list[tuple[str, int, str]]:
        """File, line and message of each problem of a table."""
        with pytest.raises(SpecError) as caught:
            self.load(table)
        found = []
        for line in str(caught.value).splitlines():
            place, _, message = line.removeprefix(f"{self.root}/").partition(": ")
            name, _, number = place.partition(":")
            if number:
                found.append((name, int(number), message))
        return found

    def line_of(self, name: str, text: str) -> int:
        """The line of a file that contains a text."""
        lines = (self.root / name).read_text(encoding="utf-8").splitlines()
        (number,) = [i for i, line in enumerate(lines, 1) if text in line]
        return number

    def _write(self, name: str) -> None:
        text = yaml.dump(self._files[name], Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        (self.root / name).write_text(text, encoding="utf-8")
