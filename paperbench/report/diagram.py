"""ASCII diagrams of nets: the shortcut path is a straight line that each residual function leaves and rejoins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

from paperbench.architecture import Convolution, Unit, macs, num_features, parameters, stem, tail, units
from paperbench.catalogue import FAMILIES, NETS, PLACEMENTS, SHORTCUTS, Net

_COLUMNS = 12, 38, 64
"""Columns of the paths: first the shortcut, then the gate if any, then the residual function."""
_BOX_TEXT_WIDTH = 19  # of "global average pool"


@dataclass(frozen=True)
class Paths:
    """The operations of a unit in the order of execution, as texts for diagrams and drawings.

    Attributes:
        shared: Before the paths split.
        shortcut, gate, residual: On each path. `gate` is empty if the shortcut has no gate.
        weighing: What happens to the shortcut and to the residual path right before the addition; "" if nothing.
        after: After the addition.
    """

    shared: tuple[str, ...]
    shortcut: tuple[str, ...]
    gate: tuple[str, ...]
    residual: tuple[str, ...]
    weighing: tuple[str, str]
    after: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """All of it in words."""
        shortcut, residual = (
            texts + (last,) * bool(last)
            for texts, last in zip((self.shortcut, self.residual), self.weighing, strict=True)
        )
        parts = {
            "On both paths": self.shared,
            "Gate g": self.gate,
            "Shortcut": shortcut or ("identity",),
            "Residual path": residual,
            "After the addition": self.after,
        }
        return " ".join(f"{name}: {', '.join(texts)}." for name, texts in parts.items() if texts)


def paths(net: Net, unit: Unit, *, plain: bool = False) -> Paths:
    """Return what a unit of a net computes.

    Args:
        plain: Leave out channels, strides and biases, as the paper's figures do.
    """
    before, is_shared = component_names(unit.before), unit.shortcut_reads == "activated"
    between = component_names(("bn", "relu"))

    def conv(layer: Convolution) -> str:
        return ("1x1 conv" if layer.kernel == 1 else "weight") if plain else format_conv(layer)

    shortcut, gate = list[str](), list[str]()
    if isinstance(unit.resizing, Convolution):
        shortcut += [conv(unit.resizing), *component_names(["bn"] * unit.resizing_bn)]
    elif unit.resizing == "zero_pad":
        shortcut += ["every 2nd pixel"] if unit.stride == 2 else []
        shortcut += [f"+ {unit.out_channels - unit.in_channels} zero channels"]
    if unit.gate:
        gate = [conv(unit.gate), *([] if plain else [f"+ b, {net.gate_bias:g} initially"]), "sigmoid"]
    residual = [] if is_shared else [*before]
    for number, layer in enumerate(unit.weight_layers):
        residual += between if number else ()
        residual += [f"dropout {unit.dropout:g}"] if unit.dropout and layer is unit.weight_layers[-1] else []
        residual.append(conv(layer))
    return Paths(
        before if is_shared else (),
        tuple(shortcut),
        tuple(gate),
        (*residual, *component_names(unit.last)),
        _weighing(net),
        component_names(unit.after_addition),
    )


def _weighing(net: Net) -> tuple[str, str]:
    match net.shortcut, net.shortcut_scale, net.residual_scale:
        case "exclusive_gating", _, _:
            return "times (1 - g)", "times g"
        case "shortcut_only_gating", _, _:
            return "times (1 - g)", ""
        case "constant_scaling", float(h), float(f):
            return "" if h == 1 else f"times {h:g}", "" if f == 1 else f"times {f:g}"
        case "dropout", _, _:
            return "dropout 0.5", ""
    return "", ""


def kinds(net: Net) -> Iterator[list[Unit]]:
    """Yield the units of a net in groups of consecutive equal ones."""
    for _, group in groupby(units(net), key=lambda unit: replace(unit, index=0)):
        yield list(group)


def net_title(net: Net) -> str:
    """Return the name of a net in the catalogue, or its depth."""
    known = (n for n, one in NETS.items() if replace(one, num_classes=net.num_classes, in_chans=net.in_chans) == net)
    return next(known, f"ResNet-{net.depth}")


def unit_title(equal: list[Unit]) -> str:
    """Return the position in the net of some consecutive equal units."""
    first, last = equal[0], equal[-1]
    which = f"unit {first.index + 1}"
    if len(equal) > 1:
        which = f"units {first.index + 1} to {last.index + 1}: {len(equal)} equal units"
    return f"stage {first.stage + 1}, {which}"


def diagram(net: Net) -> str:
    """Return a diagram of a net in ASCII, at most 100 columns wide. Consecutive equal units are drawn once."""
    size = FAMILIES[net.family].size
    columns = 2 if net.gate_bias is None else 3
    facts = (f"  {key:<12}{fact}" for key, fact in heading(net).items())
    lines = [net_title(net), *facts, "", *_stem(net, size, columns)]
    size = stem(net).output_size(size)
    for equal in kinds(net):
        size = equal[0].output_size(size)
        lines += [*_title(equal, columns), *_unit(net, equal[0])]
        lines += [_line("|", columns, format_shape(equal[0].out_channels, size)), _line()]
    return "\n".join([*lines, *_end(net, columns)])


def heading(net: Net) -> dict[str, str]:
    """Return facts about a net and its diagram by their headings."""
    placement, shortcut, size = PLACEMENTS[net.placement], SHORTCUTS[net.shortcut], FAMILIES[net.family].size
    facts = {
        "placement": f"{placement.title}, Fig. {placement.figure} of arXiv:1603.05027",
        "shortcut": f"{shortcut.title}, Fig. {shortcut.figure}",
        "size": f"{net.depth} layers, {sum(net.units)} units, {parameters(net):,} parameters",
        "cost": f"{macs(net) / 1e6:.1f}M multiply-accumulates on an image of {format_shape(net.in_chans, size)}",
        "shapes": "channels x height x width",
        "notation": "x: signal that enters a unit; F: residual function; /2: stride 2",
    }
    if net.gate_init:
        weights = "He's" if net.gate_init == "he" else "Gaussian with standard deviation 0.01"
        facts["gate"] = f"g has one value per channel and pixel; initial weights: {weights}"
    if net.shortcut == "dropout":
        rest, test = (" and doubles the others", "changes nothing") if net.inverted else ("", "halves all values")
        facts["dropout"] = f"training drops half of the values{rest}; testing {test}"
    if p := net.residual_dropout:
        facts["dropout (F)"] = f"training drops {p:g} of the values and divides the others by {1 - p:g}; testing none"
    return facts


def _stem(net: Net, size: int, columns: int) -> Iterator[str]:
    first = stem(net)
    yield _line("image", columns, format_shape(net.in_chans, size))
    yield _line()
    yield _line(_box(format_conv(first.convolution)))
    if first.components:
        yield _line(_box(", ".join(component_names(first.components))))
    if first.pools:
        yield _line("|", columns, format_shape(first.convolution.outputs, first.convolution.output_size(size)))
        yield _line(_box("3x3 max pool, /2"))
    yield _line("|", columns, format_shape(first.convolution.outputs, first.output_size(size)))
    yield _line()


def _title(equal: list[Unit], columns: int) -> Iterator[str]:
    start, end = _COLUMNS[0] + 3, _shape_column(columns) + len("64 x 112 x 112")
    yield _row((_COLUMNS[0], "|"), (start, f"== {unit_title(equal)} ".ljust(end - start, "=")))
    yield _line()


def _unit(net: Net, unit: Unit) -> Iterator[str]:
    found = paths(net, unit)
    if found.shared:
        yield _line(_box(_joined(found.shared)[0]))
        yield _line()
    boxes = [_joined(found.shortcut), _joined(found.gate), _joined(found.residual)]
    names = ["|", "  | g", "  | F"]
    if not unit.gate:
        del boxes[1], names[1]
    signal = "activated x" if found.shared else "raw x" if unit.before else "x"
    others = len(boxes) - 1
    yield _paths("o", *"." * others, wire_to=others)
    yield _paths(f"{signal} |{' ' * len(signal)} ", *"|" * others)  # padded, since texts are centred
    for texts in zip_longest(*boxes):
        yield _paths(*map(_box, texts))
    yield _paths(*names)
    shortcut, residual = map(_box, found.weighing)
    if unit.gate and found.weighing[1]:
        yield _paths(f" {shortcut}<", "+", f">{residual} ", wire_to=2)
    elif unit.gate:
        yield _paths(f" {shortcut}<", "'", "|", wire_to=1)
    elif any(found.weighing):
        yield _paths(shortcut, residual)
    if any(found.weighing):
        yield _row((_COLUMNS[0], "|"), (_COLUMNS[others], "|"))
    yield _row(_wire(others), _centred(_COLUMNS[0], "(+)"), (_COLUMNS[0] + 2, "<"), (_COLUMNS[others], "'"))
    if found.after:
        yield _line()
        yield _line(_box(_joined(found.after)[0]))


def _joined(texts: Iterable[str]) -> list[str]:
    """Write BN and the ReLU that follows it into one box."""
    found: list[str] = []
    for text in texts:
        if text == "ReLU" and found[-1:] == ["BN"]:
            text = f"{found.pop()}, {text}"
        found.append(text)
    return found


def _end(net: Net, columns: int) -> Iterator[str]:
    if tail(net):
        yield _line(_box(", ".join(component_names(tail(net)))))
    yield _line(_box("global average pool"))
    yield _line("|", columns, str(num_features(net)))
    if net.num_classes:
        yield _line(_box(f"classifier, {net.num_classes}"))


def format_conv(layer: Convolution) -> str:
    """Return a short text, such as "3x3 conv, 16, /2"."""
    stride = "" if layer.stride == 1 else f", /{layer.stride}"
    return f"{layer.kernel}x{layer.kernel} conv, {layer.outputs}{stride}"


def component_names(components: Iterable[str]) -> tuple[str, ...]:
    """Return the names of components for people."""
    return tuple({"bn": "BN", "relu": "ReLU"}[name] for name in components)


def format_shape(channels: int, size: int) -> str:
    """Return channels x height x width."""
    return f"{channels} x {size} x {size}"


def _line(text: str = "|", columns: int = 2, shape: str = "") -> str:
    """Return a line outside units."""
    return _row(_centred(_COLUMNS[0], text), (_shape_column(columns), shape))


def _paths(*texts: str, wire_to: int = 0) -> str:
    """Return a line inside a unit: a text centred on each path, over a wire from the shortcut to path `wire_to`."""
    return _row(_wire(wire_to), *map(_centred, _COLUMNS, texts))


def _shape_column(columns: int) -> int:
    return _COLUMNS[columns - 1] + 16


def _box(text: str | None) -> str:
    return f"[ {text:^{_BOX_TEXT_WIDTH}} ]" if text else "|"


def _wire(path: int) -> tuple[int, str]:
    return _COLUMNS[0], "-" * (_COLUMNS[path] - _COLUMNS[0])


def _centred(column: int, text: str) -> tuple[int, str]:
    return max(column - len(text) // 2, 0), text


def _row(*pieces: tuple[int, str]) -> str:
    """Return a line with texts that start at the given columns. Later ones overwrite earlier ones."""
    characters = [" "] * 100
    for column, text in pieces:
        characters[column : column + len(text)] = text
    return "".join(characters).rstrip()
