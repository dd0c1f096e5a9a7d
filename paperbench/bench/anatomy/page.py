"""The measurement as one page of Markdown: what follows from it first, then the figures of every part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from paperbench.bench.anatomy.conclusion import COMPILE_CHECK, GROUPS, HINTS, IDLE, convolution_sums, rows_of
from paperbench.bench.anatomy.floors import LEVELS
from paperbench.bench.figures import is_difference

Row = Mapping[str, Any]

_HOW_TO_READ = """\
Bytes, operations and launches are counted from the architecture, times are measured. A floor is the time that counted
work takes at the machine's measured best: bytes at the rate of a large copy, launches at the time of the smallest
kernel in a CUDA graph, arithmetic at the rate of a large matrix product. A step can be no faster than the greatest of
the three, except that bytes which are still in the cache cost less. The byte floor depends on what is fused: *unfused*
is every operation by itself (engines eager and graph), *fused* is BN with ReLU and addition (compile), *ideal* is
normalisation within the convolutions around it. "Share" is floor over measured; above 100 % the cache has helped."""


_NO_DIFFERENCE = "~: nearer to 1 than a loop was to itself when it was measured twice: no difference."


def page(content: Row) -> str:
    """The page of a document."""
    sections = [
        _head(content),
        _in_short(content),
        _machine(content),
        _ladder(content),
        _kernels(content),
        _convolutions(content),
        _normalisation(content),
        _pieces(content),
        _seeds(content),
        _exactness(content),
        _imagenet(content),
        _counted(content),
        _lost(content),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(content: Row) -> str:
    facts = _facts(content)
    machine = facts.get("device", content["device"])
    libraries = ", ".join(f"{name} {facts[key]}" for name, key in _LIBRARIES if facts.get(key))
    code = content["paperbench"]
    commit = f", commit {code['commit'][:12]}" if code.get("commit") else ""
    lines = [
        "# Where a training step's time goes",
        "",
        f"{machine}; {libraries}" if libraries else str(machine),
        f"{content['date']}, paperbench {code['version']}{commit}; {content['seconds']:.0f} s of "
        f"{60 * content['minutes']:.0f} s used.",
    ]
    if content["scale_note"]:
        lines += ["", f"Less was measured than on a GPU: {content['scale_note']}."]
    if content["signal"]:
        lines += [
            "",
            f"**The command was ended by signal {content['signal']}; what was measured until then is below.**",
        ]
    lost = [_label(o) for o in content["parts"] if o["status"] in ("killed", "crashed")]
    if lost:
        lines += ["", f"**Lost or cut short: {', '.join(lost)}.** Why is said at the end."]
    return "\n".join(lines)


_LIBRARIES = (("torch", "torch"), ("CUDA", "cuda"), ("cuDNN", "cudnn"), ("driver", "driver"))


def _in_short(content: Row) -> str:
    entries = content["conclusion"]
    if not entries:
        return "## In short\n\nNo step was measured, so nothing can be concluded. The last section says why."
    rows = []
    for entry in entries:
        rows.append(
            (
                _short(entry["model"]),
                entry["precision"],
                entry["engine"] + ("" if entry["from"] == "ladder" else " (!)"),
                f"{entry['images_per_second']:,.0f}",
                _times(entry["over_plain"], entry["noise"]),
                _ms(entry["ms_per_step"]),
                _ms(_own_floor(entry)),
                _percent(entry["share"]),
                entry["floor"] or "-",
            )
        )
    headers = ["net", "precision", "fastest engine", "images/s", "x plain", "ms/step", "floor, ms", "share", "of what"]
    lines = ["## In short", "", _table(headers, rows, left=(0, 1, 2, 8)), ""]
    if any(entry["from"] == "kernels" for entry in entries):
        lines += ["(!): loss not checked; the ladder has no figure, so it is that of the profile's untimed rounds.", ""]
    if any(_is_noise(entry["over_plain"], entry["noise"]) for entry in entries):
        lines += [_NO_DIFFERENCE, ""]
    lines += [
        _exact_in_short(content),
        "",
        "**What stands in the way**: ms a step beyond the ideal floor of that work,",
    ]
    lines.append("the three greatest. Of how many ms, and in how many kernels, stands in brackets.")
    if any(entry["byte_floor_ms"]["ideal"] is None for entry in entries):
        lines.append("(the machine's rates were not measured, so all time counts as beyond its floor)")
    lines.append("")
    named: dict[str, None] = {}
    for entry in entries:
        about = f"- {_short(entry['model'])}, {entry['precision']}, {entry['engine']}: "
        if entry["next"] is None:
            lines.append(about + "not known, as its kernels were not profiled.")
            continue
        worst = [item for item in entry["next"] if item["beyond_ms"] > 0][:3]
        named |= dict.fromkeys(item["work"] for item in worst)
        told = "; ".join(
            f"{item['work']} {_ms(item['beyond_ms'])} (of {_ms(item['ms'])}, {item['number']:,.0f})" for item in worst
        )
        lines.append(about + (told or "nothing") + ".")
    if named:
        lines += ["", "What helps: " + "; ".join(f"*{work}*: {HINTS[work]}" for work in named) + "."]
    lines += ["", _HOW_TO_READ, "", _floors(entries)]
    return "\n".join(lines)


def _own_floor(entry: Row) -> float | None:
    """The greatest floor of the step as its engine fuses it."""
    return entry["share"] * entry["ms_per_step"] if entry["share"] is not None else None


def _floors(entries: Iterable[Row]) -> str:
    """All floors of the fastest steps."""
    rows = [
        (
            _short(entry["model"]),
            entry["precision"],
            entry["engine"],
            _ms(entry["byte_floor_ms"][entry["level"]]),
            _ms(entry["byte_floor_ms"]["ideal"]),
            _ms(entry["launch_floor_ms"][entry["level"]]),
            _ms(entry["arithmetic_floor_ms"]),
            _percent(entry["share_of_ideal"]),
        )
        for entry in entries
    ]
    headers = ["floors, ms", "precision", "engine", "bytes, as fused", "bytes, ideal", "launches", "arithmetic"]
    return _table([*headers, "share of ideal"], rows, left=(0, 1, 2))


def _exact_in_short(content: Row) -> str:
    """Whether engines and seeds compute what they should."""
    seeds, checks = rows_of(content, "seeds"), rows_of(content, "exactness")
    if not seeds and not checks:
        return "**Exactness** was not checked."
    broken = [
        f"{_short(row['model'])} {row['precision']}: {row['check']}"
        for row in checks
        if not row["equal"] and row["check"] != COMPILE_CHECK
    ]
    broken += [
        f"{_short(row['model'])} {row['precision']}: {row['seeds']} seeds side by side"
        for row in seeds
        if not all(row["equal_to_solo"])
    ]
    if broken:
        return f"**Exactness: not equal bit by bit: {'; '.join(broken)}.**"
    return "**Exactness**: all that should be equal bit by bit is, as far as it was checked."


def _machine(content: Row) -> str:
    rows = rows_of(content, "machine")
    if not rows:
        return ""
    found = []
    for row in rows:
        match row["what"]:
            case "copy":
                found.append(("copy, read and written", f"{row['bytes_per_second'] / 1e9:,.0f} GB/s"))
            case "matrix product":
                rate = f"{row['flops_per_second'] / 1e12:,.1f} TFLOP/s"
                found.append((f"matrix product of side {row['side']}, {row['precision']}", rate))
            case "empty kernel":
                where = "kernel in a CUDA graph" if row["in_graph"] else "operation"
                found.append((f"smallest {where}, {row['nodes']} in a chain", f"{1e6 * row['seconds_each']:.2f} us"))
            case "dispatch":
                what = f"host's time of an eager operation ({row['net']}, {row['operations']} operations)"
                found.append((what, f"{1e6 * row['seconds_each']:.1f} us"))
    facts = _facts(content)
    told = "; ".join(
        f"{key.replace('_', ' ')} {_plain(value)}" for key, value in facts.items() if value not in (None, [], {})
    )
    return "\n".join(["## Ceilings of the machine", "", _table(["what", "measured"], found, left=(0,)), "", told])


def _ladder(content: Row) -> str:
    rows = []
    for row in rows_of(content, "ladder"):
        rows.append(
            (
                _short(row["model"]),
                row["label"],
                f"{row['images_per_second']:,.0f}",
                f"{row['low_images_per_second']:,.0f} to {row['high_images_per_second']:,.0f}",
                _ms(row["ms_per_step"]),
                _times(row["over_plain"], row["noise"]),
                _times(row["over_plain_same_precision"], row["noise"]),
                str(row["rounds"]),
                f"{100 * row['noise']:.1f} %" if row["noise"] is not None else "-",
                f"{row['first_step_seconds']:.1f}" if row["first_step_seconds"] is not None else "-",
                f"{row['peak_allocated'] / 1e9:.2f}" if row["peak_allocated"] else "-",
            )
        )
    if not rows:
        return ""
    headers = [
        "net",
        "loop, precision",
        "images/s",
        "least to most",
        "ms/step",
        "x plain as shipped",
        "x plain same prec.",
        "rounds",
        "noise",
        "first step, s",
        "peak GB",
    ]
    note = (
        "Medians of rounds in which all loops of a net and precision take turns. A loop whose first losses are not "
        "those of eager float32, or whose parameters do not move as far, has no figure. Noise: how far a loop that "
        f"was measured twice a round was from itself. {_NO_DIFFERENCE} The first step includes compilation, but what "
        "an earlier part or net has compiled is taken from the compiler's cache: for a cold one see the first net in "
        "the next table."
    )
    return "\n".join(["## Steps by engine and precision", "", _table(headers, rows, left=(0, 1)), "", note])


def _kernels(content: Row) -> str:
    rows = rows_of(content, "kernels")
    if not rows:
        return ""
    unit = rows[0]["unit"]
    groups = [*GROUPS, *([IDLE] if unit == "kernels" else [])]
    table = []
    for row in rows:
        cells = [_ms(sum(row["kinds"][kind]["ms"] for kind in GROUPS[group])) for group in groups if group != IDLE]
        if unit == "kernels":
            cells += [_ms(row["idle_ms"]), _percent(row["busy_share"])]
        table.append(
            (
                _short(row["model"]),
                row["precision"],
                row["engine"],
                _ms(row["ms_per_step"]),
                *cells,
                f"{row['launches']:,.0f}",
                f"{row['first_step_seconds']:.1f}",
            )
        )
    headers = ["net", "precision", "engine", "ms/step", *groups]
    headers += ["busy", "launches"] if unit == "kernels" else ["operators"]
    headers.append("first step, s")
    lines = ["## A step's time by kind of kernel", "", _table(headers, table, left=(0, 1, 2)), ""]
    if unit == "kernels":
        lines.append(
            "ms a step, from a profile of two steps (one of nets of 500 layers or more); ms/step and idle from steps "
            "without the profiler: idle is what ms/step leaves beside the time in which a kernel runs. BN's kernels "
            "count as such whatever is fused in."
        )
    else:
        lines.append("ms a step of operators by themselves, as the profiler sees them on a CPU; it slows them down.")
    for entry in content["conclusion"]:
        for row in rows:
            if (row["model"], row["precision"], row["engine"]) == (
                entry["model"],
                entry["precision"],
                entry["engine"],
            ):
                lines += ["", f"Longest of {_short(row['model'])}, {row['precision']}, {row['engine']}:", ""]
                lines.append(_names(row["top"][:8], with_kind=True))
    unknown = {item["name"]: item for row in rows for item in row["unknown"]}
    if unknown:
        longest = sorted(unknown.values(), key=lambda item: -float(item["ms"]))[:10]
        lines += ["", "Names that were not recognised, the longest:", "", _names(longest, with_kind=False)]
    return "\n".join(lines)


def _names(items: Iterable[Row], *, with_kind: bool) -> str:
    rows = []
    for item in items:
        name = item["name"].replace("|", "/")
        name = name if len(name) <= 100 else name[:97] + "..."
        rows.append((f"`{name}`", *([item["kind"]] if with_kind else []), _ms(item["ms"]), f"{item['number']:,.0f}"))
    headers = ["name", *(["kind"] if with_kind else []), "ms", "number"]
    return _table(headers, rows, left=(0, 1) if with_kind else (0,))


def _convolutions(content: Row) -> str:
    bandwidth = _bandwidth(content)
    lines: list[str] = []
    sums = convolution_sums(content)
    if sums:
        rows = [
            (
                _short(entry["model"]),
                entry["precision"],
                entry["layout"],
                "by timing" if entry["benchmark"] else "by rule",
                "yes" if entry["deterministic"] else "no",
                _ms(entry["forward_ms"]),
                _ms(entry["data_gradient_ms"]),
                _ms(entry["weight_gradient_ms"]),
                _ms(entry["ms"]),
                _ms(entry["byte_floor_ms"]),
                _percent(entry["byte_floor_ms"] / entry["ms"] if entry["byte_floor_ms"] else None),
                f"{entry['tflops']:.1f}",
            )
            for entry in sums
        ]
        headers = [
            "net",
            "precision",
            "layout",
            "algorithm",
            "deterministic",
            "forward",
            "data gradient",
            "weight gradient",
            "all, ms",
            "byte floor, ms",
            "share",
            "TFLOP/s",
        ]
        lines += ["All convolutions of a net, ms a step, from the times of single ones:", ""]
        lines += [_table(headers, rows, left=(0, 1, 2, 3, 4)), ""]
    singles = rows_of(content, "convolutions")
    main = [r for r in singles if r["deterministic"] and r["layout"] == "NHWC" and r["batch"] == content["batch_size"]]
    if main:
        precisions = list(dict.fromkeys(r["precision"] for r in main))
        rows = []
        for name in dict.fromkeys(r["convolution"] for r in main):
            cells: list[str] = []
            for precision in precisions:
                these = {r["direction"]: r for r in main if (r["convolution"], r["precision"]) == (name, precision)}
                times = [
                    f"{these[d]['microseconds']:.1f}" if d in these else "-"
                    for d in ("forward", "data gradient", "weight gradient")
                ]
                total = sum(r["microseconds"] for r in these.values())
                floor = 1e6 * sum(r["bytes"] for r in these.values()) / bandwidth if bandwidth else None
                cells += [" / ".join(times), _percent(floor / total if floor and total else None)]
            rows.append((name, *(_numbers(content, main, name)), *cells))
        nets = [_short(n) for n in content["counted"]]
        headers = ["convolution", *(f"in {n}" for n in nets)]
        for precision in precisions:
            headers += [f"{precision}: forward / data / weight, us", "of byte floor"]
        batch = content["batch_size"]
        lines += [f"One by one, {batch} images, NHWC, algorithms as the trainer chooses them (deterministic, by rule):"]
        lines += ["", _table(headers, rows, left=(0,)), ""]
    if not lines:
        return ""
    lines.append(
        "Inputs and outputs take turns over so many tensors that they come from memory and not from the cache, as what "
        "was saved for the backward pass does. A forward pass may find its input in the cache, and be faster then."
    )
    return "\n".join(["## Convolutions one by one", "", *lines])


def _numbers(content: Row, rows: Sequence[Row], name: str) -> list[str]:
    """How often each net has a convolution."""
    row = next(r for r in rows if r["convolution"] == name)
    keys = ("kernel", "inputs", "outputs", "stride", "size")
    found = []
    for counted in content["counted"].values():
        numbers = [c["number"] for c in counted["convolutions"] if all(c[key] == row[key] for key in keys)]
        found.append(str(sum(numbers)))
    return found


def _normalisation(content: Row) -> str:
    rows, bandwidth = [], _bandwidth(content)

    def share(row: Row, name: str) -> str:
        floor, time = row.get(f"{name}_floor_bytes"), row.get(f"{name}_microseconds")
        return _percent(1e6 * floor / bandwidth / time if bandwidth and floor and time else None)

    for row in rows_of(content, "normalisation"):
        way = row["way"] + (f" ({row['backend']})" if row["backend"] else "")
        both = row.get("both_microseconds")
        rows.append(
            (
                row["sequence"],
                f"{row['channels']} x {row['size']}²",
                row["precision"],
                row["layout"],
                way,
                f"{row['batch'] // row['group']} x {row['group']}",
                f"{row['forward_microseconds']:.1f}",
                share(row, "forward"),
                f"{row['backward_microseconds']:.1f}" if both else "-",
                f"{both:.1f}" if both else "-",
                share(row, "both") if both else "-",
            )
        )
    if not rows:
        return ""
    headers = [
        "sequence",
        "shape",
        "precision",
        "layout",
        "way",
        "groups",
        "forward, us",
        "share",
        "backward, us",
        "both, us",
        "share",
    ]
    note = (
        "Shares are of the bytes that one fused operation would move, whatever the way; native ways in sequence cannot "
        "reach 100 %. In brackets: the implementation of BN that torch picked."
    )
    return "\n".join(["## BN, ReLU and addition", "", _table(headers, rows, left=(0, 1, 2, 3, 4, 5)), "", note])


def _pieces(content: Row) -> str:
    bandwidth = _bandwidth(content)
    rows = []
    for row in rows_of(content, "pieces"):
        name = row["piece"] + (f", {_short(row['model'])}" if row["model"] else "")
        floor = 1e6 * row["floor_bytes"] / bandwidth if bandwidth else None
        rows.append(
            (
                name,
                f"{row['microseconds']:.1f}",
                f"{floor:.1f}" if floor else "-",
                _percent(_ratio(floor, row["microseconds"])),
            )
        )
    if not rows:
        return ""
    table = _table(["piece", "us", "byte floor, us", "share"], rows, left=(0,))
    note = (
        "SGD works on the same tensors in every call: those of a small net stay in the cache, and its share can be "
        "above 100 %. Within a step they come from memory."
    )
    return f"## Optimiser, batch, loss\n\n{table}\n\n{note}"


def _seeds(content: Row) -> str:
    found = rows_of(content, "seeds")
    if not found:
        return ""
    alone = {(r["model"], r["precision"]): r["images_per_second"] for r in found if r["seeds"] == 1}
    rows = []
    for row in found:
        base = alone.get((row["model"], row["precision"]))
        equal = row["equal_to_solo"]
        rows.append(
            (
                _short(row["model"]),
                row["precision"],
                row["engine"],
                str(row["seeds"]),
                f"{row['images_per_second']:,.0f}",
                _plain_times(row["images_per_second"] / base if base else None),
                f"{sum(equal)} of {len(equal)}",
            )
        )
    headers = ["net", "precision", "engine", "seeds", "images/s, all", "x one seed", "equal to their solo run"]
    note = (
        f"Bit for bit, after {found[0]['compared_steps']} steps; of more than four seeds the first four are compared."
    )
    table = _table(headers, rows, left=(0, 1, 2))
    return f"## Several seeds side by side\n\n{table}\n\n{note}"


def _exactness(content: Row) -> str:
    rows = []
    for row in rows_of(content, "exactness"):
        worst = row.get("greatest_relative_difference_of_loss")
        differs = "no" if row["check"] == COMPILE_CHECK else "**no**"
        rows.append(
            (
                _short(row["model"]),
                row["precision"],
                row["check"],
                str(row["steps"]),
                "yes" if row["equal"] else differs,
                f"{worst:.1e}" if worst is not None else "-",
            )
        )
    if not rows:
        return ""
    headers = ["net", "precision", "check", "steps", "equal bit by bit", "greatest difference of loss"]
    note = "The learning rate changes half-way. A compiled step is not expected to be equal, only near."
    return f"## Exactness\n\n{_table(headers, rows, left=(0, 1, 2, 4))}\n\n{note}"


def _imagenet(content: Row) -> str:
    bandwidth = _bandwidth(content)
    rows = []
    for row in rows_of(content, "imagenet"):
        floor = 1000 * row["unfused_bytes"] / bandwidth if bandwidth else None
        rows.append(
            (
                row["precision"],
                str(row["batch"]),
                _ms(row["ms_per_step"]),
                f"{row['images_per_second']:,.0f}",
                _ms(floor),
                _percent(_ratio(floor, row["ms_per_step"])),
            )
        )
    if not rows:
        return ""
    headers = ["precision", "batch", "ms/step", "images/s", "byte floor, unfused, ms", "share"]
    return f"## ResNet-200 on images of 224 pixels, eager, NHWC\n\n{_table(headers, rows, left=(0,))}"


def _counted(content: Row) -> str:
    rows = []
    for name, counted in content["counted"].items():
        moved = counted["bytes_per_image"]
        launches = counted["launches"]
        rows.append(
            (
                _short(name),
                f"{counted['parameters']:,}",
                f"{counted['forward_flops_per_image'] / 1e9:.3f}",
                *(f"{moved[level][p] / 1e6:,.1f}" for p in ("fp32", "bf16") for level in LEVELS),
                *(f"{number:,}" for number in launches.values()),
            )
        )
    headers = ["net", "parameters", "GFLOP forward"]
    headers += [f"MB {p} {level}" for p in ("fp32", "bf16") for level in LEVELS]
    headers += [f"launches {name}" for name in next(iter(content["counted"].values()))["launches"]]
    note = (
        f"An image, forward and backward; launches of a batch of {content['batch_size']} in groups of "
        f"{content['group']}."
    )
    return f"## Counted, not measured\n\n{_table(headers, rows, left=(0,))}\n\n{note}"


def _lost(content: Row) -> str:
    lines = []
    for outcome in content["parts"]:
        if outcome["status"] != "complete":
            kept = f" Rows kept: {len(outcome['rows'])}." if outcome["rows"] else ""
            lines.append(f"- {_label(outcome)}: {outcome['status']}: {outcome['why']}.{kept}")
        reasons: dict[str, list[str]] = {}
        for left in outcome["left_out"]:
            words = ", ".join(f"{key} {_plain(value)}" for key, value in left["what"].items() if key in _TELLING)
            reasons.setdefault(left["why"], []).append(words)
        for why, things in reasons.items():
            few = "; ".join(things[:3]) + (f"; and {len(things) - 3} more" if len(things) > 3 else "")
            lines.append(f"- {_label(outcome)}, left out, {why}: {few}.")
    told = "\n".join(lines) or "Nothing was left out."
    times = ", ".join(f"{_label(o)} {o['seconds']:.0f} s" for o in content["parts"] if o["limit_seconds"])
    return f"## What was not measured, and why\n\n{told}\n\nTimes: {times}."


_TELLING = (
    "what",
    "model",
    "check",
    "piece",
    "convolution",
    "direction",
    "sequence",
    "channels",
    "size",
    "kind",
    "engine",
    "precision",
    "layout",
    "way",
    "seeds",
)


def _label(outcome: Row) -> str:
    return f"{outcome['part']} {_short(outcome['model'])}" if outcome["model"] else str(outcome["part"])


def _facts(content: Row) -> Row:
    return next((row["facts"] for row in rows_of(content, "machine") if row["what"] == "facts"), {})


def _bandwidth(content: Row) -> float | None:
    return next((row["bytes_per_second"] for row in rows_of(content, "machine") if row["what"] == "copy"), None)


def _short(model: str) -> str:
    """A name without the part that all usual nets share."""
    return model.removeprefix("preact_").replace("resnet", "ResNet-")


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _plain_times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(value: float | None, noise: float | None) -> str:
    """A ratio, marked if it is none to speak of."""
    return "-" if value is None else f"{'~' if _is_noise(value, noise) else ''}{value:.2f}"


def _is_noise(ratio: float | None, noise: float | None) -> bool:
    """Whether a ratio is nearer to 1 than a loop was to itself."""
    return ratio is not None and not is_difference(ratio, noise)


def _ratio(floor: float | None, time: float) -> float | None:
    return floor / time if floor is not None and time else None


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> str:
    alignment = ["left" if column in left else "right" for column in range(len(headers))]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=alignment)
