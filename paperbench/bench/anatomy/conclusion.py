"""What the measured figures say about steps: how near they are to their floors, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paperbench.bench.anatomy.floors import LEVEL_OF_ENGINE, LEVELS, Floors, passes_of
from paperbench.catalogue import Net

Row = Mapping[str, Any]

GROUPS = {
    "convolutions": ("convolution",),
    "BN, ReLU, addition": ("batch norm", "elementwise"),
    "optimiser": ("optimiser",),
    "copies, casts": ("copy, cast",),
    "reductions, classifier": ("reduction", "matrix product"),
    "other": ("other",),
}
"""Kinds of kernels that are one work: which of BN, ReLU and addition share a kernel is the compiler's choice."""

IDLE = "idle"

COMPILE_CHECK = "compile is as eager"
"""The check of exactness that is not expected to find equal bits."""

WITHOUT_RIGHT_LOSS = ("wrong loss", "not checked")
"""How the ladder's reasons for having no figure begin, where the step may be a wrong one."""

HINTS = {
    "convolutions": "other algorithms, or kernels of our own, for the shapes that are far from their floor below",
    "BN, ReLU, addition": "statistics into the convolution before, normalisation and ReLU into the one after",
    "optimiser": "one kernel for all parameters",
    "copies, casts": "one memory layout throughout, weights kept in the precision of the convolutions",
    "reductions, classifier": "loss, metrics and pooling in fewer kernels",
    "other": "look at the names listed below",
    IDLE: "fewer or longer kernels; a graph, if the host launches them one by one",
}


@dataclass(frozen=True)
class Ceilings:
    """What the machine can do, as measured; None where that is not known.

    Attributes:
        bytes_per_second: Of a copy, read and written.
        flops_per_second: Of a large matrix product, by precision.
        kernel_seconds: Of the smallest kernel within a graph.
    """

    bytes_per_second: float | None
    flops_per_second: dict[str, float]
    kernel_seconds: float | None

    @staticmethod
    def of(content: Row) -> Ceilings:
        """Those in a document."""
        rows = rows_of(content, "machine")
        copied = next((r["bytes_per_second"] for r in rows if r["what"] == "copy"), None)
        empty = next((r["seconds_each"] for r in rows if r["what"] == "empty kernel" and r["in_graph"]), None)
        products = {r["precision"]: r["flops_per_second"] for r in rows if r["what"] == "matrix product"}
        return Ceilings(copied, products, empty)

    def arithmetic(self, precision: str) -> float | None:
        """Operations a second in a precision."""
        return self.flops_per_second.get("bf16" if precision.startswith("bf16") else precision)


def rows_of(content: Row, part: str, model: str | None = None) -> list[Row]:
    """All rows of a part, of one net or of all."""
    return [
        row
        for outcome in content["parts"]
        if outcome["part"] == part and (model is None or outcome["model"] == model)
        for row in outcome["rows"]
    ]


def conclude(content: Row, nets: Mapping[str, Net]) -> list[dict[str, Any]]:
    """For each net and precision: the fastest engine, its floors, its share, and where the rest of its time goes."""
    ceilings = Ceilings.of(content)
    found = []
    for name, net in nets.items():
        steps = measured_steps(content, name)
        for precision in dict.fromkeys(step["precision"] for step in steps):
            of_precision = [step for step in steps if step["precision"] == precision]
            fastest = min(of_precision, key=lambda step: float(step["ms_per_step"]))
            profiled = next(
                (
                    row
                    for row in rows_of(content, "kernels", name)
                    if (row["precision"], row["engine"]) == (precision, fastest["engine"])
                ),
                None,
            )
            found.append(_of_step(name, Floors(net), fastest, profiled, ceilings))
    return found


def measured_steps(content: Row, model: str) -> list[dict[str, Any]]:
    """A step's time by engine and precision: from the ladder, or where that has none, from the part "kernels".

    Without those whose losses the ladder found wrong or could not check; "kernels" looks at none.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    refused = _refused(content, model)
    for part in ("kernels", "ladder"):
        for row in rows_of(content, part, model):
            if part == "ladder" and row["kind"] != "paperbench":
                continue
            if part == "kernels" and (row["precision"], row["engine"]) in refused:
                continue
            found[row["precision"], row["engine"]] = {
                "engine": row["engine"],
                "precision": row["precision"],
                "batch": row["batch"],
                "group": row["group"],
                "ms_per_step": row["ms_per_step"],
                "images_per_second": row["images_per_second"],
                "over_plain": row.get("over_plain"),
                "over_plain_same_precision": row.get("over_plain_same_precision"),
                "noise": row.get("noise"),
                "from": part,
            }
    return sorted(found.values(), key=lambda step: (step["precision"], step["engine"]))


def _refused(content: Row, model: str) -> set[tuple[str, str]]:
    """Precisions and engines whose losses the ladder found wrong or could not check."""
    return {
        (left["what"]["precision"], left["what"]["engine"])
        for outcome in content["parts"]
        if (outcome["part"], outcome["model"]) == ("ladder", model)
        for left in outcome["left_out"]
        if left["what"].get("kind") == "paperbench" and left["why"].startswith(WITHOUT_RIGHT_LOSS)
    }


def _of_step(
    name: str, floors: Floors, step: Mapping[str, Any], profiled: Row | None, ceilings: Ceilings
) -> dict[str, Any]:
    batch, precision, engine = step["batch"], step["precision"], step["engine"]
    passes = passes_of(engine, batch, step["group"])
    level = LEVEL_OF_ENGINE[engine]
    bandwidth, arithmetic = ceilings.bytes_per_second, ceilings.arithmetic(precision)

    def ms(amount: float, rate: float | None) -> float | None:
        return 1000 * amount / rate if rate else None

    byte_ms = {one: ms(floors.step_bytes(one, precision, batch, passes), bandwidth) for one in LEVELS}
    launch_ms = {
        one: 1000 * floors.launches(one, passes) * ceilings.kernel_seconds if ceilings.kernel_seconds else None
        for one in LEVELS
    }
    flop_ms = ms(floors.training_flops * batch, arithmetic)
    own = _greatest({"bytes": byte_ms[level], "launches": launch_ms[level], "arithmetic": flop_ms})
    ideal = _greatest({"bytes": byte_ms["ideal"], "launches": launch_ms["ideal"], "arithmetic": flop_ms})
    return {
        "model": name,
        **step,
        "level": level,
        "byte_floor_ms": byte_ms,
        "launch_floor_ms": launch_ms,
        "arithmetic_floor_ms": flop_ms,
        "floor": own[0] if own else None,
        "share": own[1] / step["ms_per_step"] if own else None,
        "share_of_ideal": ideal[1] / step["ms_per_step"] if ideal else None,
        "next": _distances(floors, batch, precision, profiled, ceilings) if profiled else None,
    }


def _greatest(values: Mapping[str, float | None]) -> tuple[str, float] | None:
    known = [(name, value) for name, value in values.items() if value is not None]
    return max(known, key=lambda item: item[1], default=None)


def _distances(floors: Floors, batch: int, precision: str, profiled: Row, ceilings: Ceilings) -> list[dict[str, Any]]:
    """Works by what they take beyond their ideal floor, the farthest first."""
    bandwidth, arithmetic = ceilings.bytes_per_second, ceilings.arithmetic(precision)

    def bytes_ms(amount: float) -> float:
        return 1000 * amount / bandwidth if bandwidth else 0.0

    flop_ms = 1000 * floors.training_flops * batch / arithmetic if arithmetic else 0.0
    launch_ms = 1000 * floors.launches("ideal") * (ceilings.kernel_seconds or 0.0)
    byte_ms = bytes_ms(batch * floors.bytes_per_image("ideal", precision, "convolution"))
    floor_ms = {
        "convolutions": max(byte_ms, flop_ms, launch_ms),
        "BN, ReLU, addition": bytes_ms(batch * floors.bytes_per_image("ideal", precision, "normalisation")),
        "optimiser": bytes_ms(floors.optimiser_bytes()),
        "copies, casts": bytes_ms(batch * floors.input_bytes()),
    }
    found = []
    for group, kinds in GROUPS.items():
        taken = sum(profiled["kinds"][kind]["ms"] for kind in kinds)
        number = sum(profiled["kinds"][kind]["number"] for kind in kinds)
        found.append(_distance(group, taken, floor_ms.get(group, 0.0), number))
    if profiled.get("idle_ms") is not None:
        found.append(_distance(IDLE, profiled["idle_ms"], 0.0, profiled["gaps"]))
    return sorted(found, key=lambda item: -float(item["beyond_ms"]))


def _distance(work: str, taken: float, floor: float, number: float) -> dict[str, Any]:
    return {"work": work, "ms": taken, "floor_ms": floor, "beyond_ms": taken - floor, "number": number}


def convolution_sums(content: Row) -> list[dict[str, Any]]:
    """What all convolutions of a net take in a step, by the times of single ones; one entry a net and setting.

    Only settings in which every convolution of the net was measured.
    """
    rows = [*rows_of(content, "convolutions"), *rows_of(content, "autotuned")]
    rows = [row for row in rows if row["batch"] == content["batch_size"]]
    settings = list(dict.fromkeys(setting_of(row) for row in rows))
    bandwidth = Ceilings.of(content).bytes_per_second
    found = []
    for name, counted in content["counted"].items():
        for setting in settings:
            times = {(_shape(row), row["direction"]): row for row in rows if setting_of(row) == setting}
            entry = _sum(counted["convolutions"], times)
            if entry is not None:
                floor = 1000 * entry.pop("bytes") / bandwidth if bandwidth else None
                keys = ("precision", "layout", "benchmark", "deterministic")
                found.append({"model": name, **dict(zip(keys, setting, strict=True)), **entry, "byte_floor_ms": floor})
    return found


def setting_of(row: Row) -> tuple[Any, ...]:
    """What distinguishes two measurements of the same convolution."""
    return row["precision"], row["layout"], row["benchmark"], row["deterministic"]


def _shape(row: Row) -> tuple[int, ...]:
    return row["kernel"], row["inputs"], row["outputs"], row["stride"], row["size"]


def _sum(convolutions: Iterable[Row], times: Mapping[tuple[Any, str], Row]) -> dict[str, float] | None:
    ms = {"forward": 0.0, "data gradient": 0.0, "weight gradient": 0.0}
    moved = flops = 0.0
    for one in convolutions:
        for direction in ms:
            row = times.get((_shape(one), direction))
            if row is None:
                if direction == "data gradient" and one["inputs"] == 3:  # the images need none
                    continue
                return None
            ms[direction] += one["number"] * row["microseconds"] / 1000
            moved += one["number"] * row["bytes"]
            flops += one["number"] * row["flops"]
    total = sum(ms.values())
    return {
        "forward_ms": ms["forward"],
        "data_gradient_ms": ms["data gradient"],
        "weight_gradient_ms": ms["weight gradient"],
        "ms": total,
        "tflops": flops / total / 1e9,
        "bytes": moved,
    }
