"""Find out the facts of a net and its training by running the code that trains it, in float64 and on a CPU.

Weights, images and gradients are made by integer arithmetic, so no random generator and no rounding enters them.
"""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from paperbench.ambient import neutral
from paperbench.catalogue import AnyNet, OwnNet
from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.feed import Feed
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.loader import Batch
from paperbench.errors import RunError
from paperbench.models.building import draws_noise, guarded, imported_beside, layout
from paperbench.seeds import derived_seed
from paperbench.specs.facts import INITIAL, Facts
from paperbench.specs.recipe import Evaluation, Recipe, format_value
from paperbench.specs.run_spec import canonical_json
from paperbench.training.batch_norm import TrainingBatchNorm2d
from paperbench.training.evaluation import reestimate_batch_norm
from paperbench.training.memory import is_out_of_memory
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.step import TrainingStep
from paperbench.training.trainer import Trainer
from paperbench.training.working_copy import DirectModel

_CPU = torch.device("cpu")
_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "kernel_size": (),
    "stride": ((1, 1),),
    "padding": ((0, 0), 0),
    "padding_mode": ("zeros",),
    "dilation": ((1, 1), 1),
    "groups": (1,),
    "eps": (),
    "momentum": (),
    "p": (),
    "training": (True, False),
}
"""What a layer computes, by torch's names, and values that go without saying.

Its `extra_repr` would do, but for the versions of torch.
"""
_MOST_RATES = 16
"""Rates that are listed of a schedule that changes at every iteration."""
_LARGE = 1e300
_SAMPLE = 100_000
"""Initial values of a tensor by which their law is known."""
_FEW = 300
_SIDE = 32
"""Side of small images in pixels."""
_IMAGES = 4
"""Images that go through the net."""


def uniform(size: int, *purpose: str | int) -> npt.NDArray[np.float64]:
    """Return numbers in [-1, 1) on a grid of 2**-23, from Philox (Salmon et al., 2011)."""
    numbers: npt.NDArray[np.uint64] = np.random.Philox(key=derived_seed(0, *purpose)).random_raw(size)
    return (numbers >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1


def _tensor(shape: Iterable[int], *purpose: str | int) -> Tensor:
    sides = [*shape]
    return torch.from_numpy(uniform(math.prod(sides), *purpose)).view(sides)


def pin(model: nn.Module) -> None:
    """Give a net weights, and BN averages, that are made by integer arithmetic and of the usual size."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not tensor.is_floating_point():
                continue
            made = _tensor(tensor.shape, name)
            if tensor.ndim > 1:
                made *= (3 / tensor[0].numel()) ** 0.5
            else:
                made = made / 4 + (name.endswith(("weight", "running_var")))
            tensor.copy_(made)


# Layers


def law_of(weight: Tensor) -> str:
    """Return in words the law that initial values follow, as far as their number can tell."""
    values = weight.detach().double().flatten()[:_SAMPLE]
    if (values == values[0]).all():
        return f"all {values[0].item():.9g}"
    rest = values - values.mean()
    deviation = rest.square().mean().sqrt().item()
    # Of so many values, a normal law has some beyond two deviations, and a uniform one none.
    kind = "drawn" if len(values) < _FEW else "normal" if rest.abs().max() > 2 * deviation else "uniform"
    if abs(values.mean().item()) > 5 * deviation / len(values) ** 0.5:
        return f"{kind}, mean not 0"
    known = {expected: text for text, expected in reversed([*_deviations(weight)])}
    alike = {min(known, key=lambda one: abs(math.log(deviation / one)))}
    error = (0.5 / len(values)) ** 0.5  # of the logarithm, if they are normal
    if abs(math.log(deviation / min(alike))) > 5 * error:
        return f"{kind}, another deviation"
    for _ in known:  # what so few values cannot tell apart
        alike |= {one for one in known for other in alike if abs(math.log(one / other)) < 10 * error}
    return f"{kind}, deviation {' or '.join(f'{known[one]} = {one:.4g}' for one in sorted(alike))}"


def _deviations(weight: Tensor) -> Iterator[tuple[str, float]]:
    """Yield standard deviations that initial weights may have, with their formulas."""
    if weight.ndim > 1:
        fan_in, fan_out = weight[0].numel(), weight[:, 0].numel()
        matrix = weight.detach().double().flatten(1)
        rows = (matrix if len(matrix) <= matrix.shape[1] else matrix.T)[:64]
        gram = rows @ rows.T
        if (gram - gram.diag().mean() * torch.eye(len(gram))).abs().max() < 1e-4 * gram.diag().mean():
            yield "of an orthogonal matrix", matrix.square().mean().sqrt().item()
        yield "sqrt(2 / fan-out)", (2 / fan_out) ** 0.5
        yield "sqrt(2 / fan-in)", (2 / fan_in) ** 0.5
        yield "sqrt(1 / (3 fan-in))", (3 * fan_in) ** -0.5
    yield "0.01", 0.01
    yield "0.02", 0.02


def _layer(name: str, module: nn.Module, said: Mapping[str, str]) -> str:
    """Describe a layer by what it computes; `said` describes its tensors."""
    parts = [next(one.__name__ for one in type(module).__mro__ if one.__module__.startswith("torch.nn"))]
    for setting, usual in _SETTINGS.items():
        value = getattr(module, setting, None)
        if isinstance(value, (int, float, tuple, str)) and value not in usual:
            text = "x".join(map(str, value)) if isinstance(value, tuple) else f"{value:.9g}"
            parts.append(f"{setting} {text if not isinstance(value, str) else value}")
    if not type(module).__module__.startswith(("torch.", "paperbench.training")):
        known = {name: value for name, value in vars(module).items() if isinstance(value, (bool, int, float, str))}
        parts += [f"{name} {value}" for name, value in known.items() if name not in _SETTINGS and name[0] != "_"]
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    parts += [f"{key} {said[f'{name}.{key}'.lstrip('.')]}" for key, tensor in own if tensor.is_floating_point()]
    return "; ".join(parts)


def _block_of(name: str) -> str:
    """Return the part of a module's name up to its last number, or else its first word."""
    numbered = re.match(r".*\.\d+(?=\.|$)", name)
    return numbered[0] if numbered else name.partition(".")[0]


def _blocks(
    model: nn.Module, order: Collection[str], said: Mapping[str, str]
) -> Iterator[tuple[Sequence[str], tuple[str, ...]]]:
    """Yield what the layers of each block compute, in the order in which they ran; equal blocks in a row as one."""
    rows: dict[str, list[str]] = defaultdict(list)
    modules = dict(model.named_modules())
    for name, module in {**{name: modules[name] for name in order}, **modules}.items():
        has_own = any(True for _ in module.parameters(recurse=False)) or not any(True for _ in module.children())
        if has_own and not isinstance(module, nn.Identity):
            block = _block_of(name)
            text = _layer(name, module, said) if name in order else f"{_layer(name, module, said)}; not run"
            rows[block].append(f"{name.removeprefix(block).lstrip('.')}: {text}")
    for _, group in groupby(enumerate(rows), lambda one: _kind(rows, *one)):
        names = [name for _, name in group]
        yield names, tuple(rows[names[0]])


def _kind(rows: Mapping[str, list[str]], position: int, block: str) -> tuple[str, int | None, list[str]]:
    """Return what neighbouring blocks have in common if they can be listed once."""
    head, _, number = block.rpartition(".")
    return head, position - int(number) if number.isdecimal() else position, rows[block]


# Signals and gradients


def _size(tensor: Tensor) -> float:
    """Return the root mean square, with ten digits."""
    return _rounded(torch.linalg.vector_norm(tensor.detach().double()) / tensor.numel() ** 0.5)


def _summary(tensor: Tensor) -> tuple[float, ...]:
    """Return the size of a vector, and its part in a fixed direction, which depends on signs and places."""
    direction = _tensor(tensor.shape, "direction") / tensor.numel() ** 0.5
    return _size(tensor), _rounded(tensor.double() @ direction)


def _averages(model: nn.Module) -> tuple[float, ...]:
    names = "running_mean", "running_var"
    found = [one.flatten() for name, one in model.named_buffers() if name.endswith(names)]
    return _summary(torch.cat(found)) if found else ()


def _rounded(value: Tensor) -> float:
    return float(f"{value.nan_to_num(posinf=_LARGE, neginf=-_LARGE).item():.10g}")


def _signals(model: nn.Module, run: Callable[[], Any]) -> dict[str, float]:
    """Run something; return the size of each module's first output, in the order in which the modules finished."""
    sizes: dict[str, float] = {}

    def keep(name: str, _: nn.Module, __: Any, output: Any) -> None:
        sizes.setdefault(name, _size(output) if isinstance(output, Tensor) else 0.0)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_hook(partial(keep, name)).remove)
        run()
    return sizes


def _drop(dropout: nn.modules.dropout._DropoutNd, _: Any, x: Tensor) -> Tensor:
    return x * (_tensor(x.shape, "dropout") >= 2 * dropout.p - 1) / (1 - dropout.p)


def net_facts(
    model: nn.Module,
    side: int,
    gradients: Callable[[Tensor, Tensor], Sequence[Tensor]],
    remarks: Mapping[str, str] = MappingProxyType({}),
) -> Facts:
    """Return the facts of a net as it is now, initialised and in float64; its weights are replaced.

    Dropout drops the same values always.

    Args:
        side: Of the images, in pixels.
        gradients: Returns the gradients of the parameters for images and labels, with the net in training mode.
        remarks: What else is to be said of parameters, by their names.
    """
    tensors = {name: t for name, t in model.state_dict(keep_vars=True).items() if t.is_floating_point()}
    laws = {name: law_of(tensor) for name, tensor in tensors.items()}
    values: dict[str, tuple[float, ...]] = {
        f"{INITIAL} {name}": (_size(tensors[name]),) for name, law in laws.items() if law.endswith("another deviation")
    }
    shapes = {name: "x".join(map(str, tensor.shape)) for name, tensor in tensors.items()}
    said = {name: ", ".join(filter(None, (shapes[name], laws[name], remarks.get(name)))) for name in tensors}
    pin(model)
    images = _tensor((_IMAGES, 3, side, side), "images")
    model.eval()
    outputs: list[Tensor] = []
    with torch.no_grad():
        tested = _signals(model, lambda: outputs.append(model(images)))
    labels = torch.arange(_IMAGES) * 3 % outputs[0].shape[1]
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval().register_forward_hook(_drop)
    found: list[Tensor] = []
    random_state = torch.get_rng_state()
    trained = _signals(model, lambda: found.extend(gradients(images, labels)))
    is_noisy = not torch.equal(random_state, torch.get_rng_state())
    gradient = {name: one for (name, _), one in zip(model.named_parameters(), found, strict=True)}
    exact: dict[str, tuple[str, ...]] = {}
    ends: list[str] = []
    sizes: dict[str, tuple[float, ...]] = {}
    for names, rows in _blocks(model, tested, said):
        head, _, first = names[0].rpartition(".")
        block = names[0] if len(names) == 1 else f"{head}.{first}-{names[-1].rpartition('.')[2]}"
        exact[block] = rows
        ends += [name for name in tested if name == names[-1] or name.startswith(f"{names[-1]}.")][-1:]
        if own := [gradient[name].flatten() for name in gradient if _block_of(name.rpartition(".")[0]) in names]:
            sizes[f"gradient in {block}"] = _summary(torch.cat(own))
    values |= {f"signal after {name}, in a test": (tested[name],) for name in ends}
    values["outputs"] = tuple(_rounded(value) for value in outputs[0].flatten()[:: -(-outputs[0].numel() // 40)])
    if is_noisy:
        exact["noise"] = ("drawn in training, other than by torch's dropout: values of training are left out",)
        return Facts(tuple(exact.items()), tuple(values.items()))
    values |= {f"signal after {name}, in training": (trained[name],) for name in ends} | sizes
    if averages := _averages(model):
        values["BN's averages after a step"] = averages
    return Facts(tuple(exact.items()), tuple(values.items()))


# Training


class _Rehearsal(Trainer):
    """A trainer in float64, of pinned images in small batches, that does apart what a training does in one step."""

    def __init__(self, net: AnyNet, recipe: Recipe, dataset: Dataset) -> None:
        batch_norm = replace(recipe.batch_norm, group=_IMAGES // min(2, recipe.groups))
        small = replace(recipe, batch_size=_IMAGES, batch_norm=batch_norm)
        if photographs := recipe.photographs:
            evaluation = Evaluation(photographs.crop, photographs.mean_image_scale or photographs.crop)
            pillow = replace(photographs, decoder="pillow")
            small = replace(small, photographs=pillow, evaluations={"pinned": evaluation})
        super().__init__(net, small, dataset, 1, "fp32", _CPU)

    def _initialised_model(self, net: AnyNet) -> nn.Module:
        model = super()._initialised_model(net).double()
        for layer in model.modules():
            if hasattr(layer, "variances"):
                TrainingBatchNorm2d.replace(cast(Any, layer))  # its statistics in float64
        return model

    def gradients(self, images: Tensor, labels: Tensor) -> Sequence[Tensor]:
        """Return the gradients of a step on these images."""
        kept: list[Tensor] = []
        feed: Any = SimpleNamespace(device=_CPU, make=lambda batch: Batch(*batch))
        optimiser: Any = SimpleNamespace(dtype=torch.float64, step=kept.extend)
        step = TrainingStep(replace(self._parts, feed=feed, optimiser=optimiser), [DirectModel(self.model)])
        step.compute((images, labels), len(images))
        step.update()
        return kept

    def decays(self) -> dict[str, str]:
        """Return the weight decay of each parameter: what a step with a gradient of 0 adds to that of a weight of 1."""
        ones = {name: torch.ones_like(one, requires_grad=False) for name, one in self.model.named_parameters()}
        optimiser = MomentumSGD(ones.values(), self.recipe)
        optimiser.step([torch.zeros_like(one) for one in ones.values()])
        moved = optimiser.momentum or [(1 - one) / optimiser.rate for one in ones.values()]
        return {name: f"decay {one.flatten()[0].item():.9g}" for name, one in zip(ones, moved, strict=True)}

    def updates(self) -> Iterator[tuple[int, float, float]]:
        """Yield iteration, rate and size of the parameters after a step, before and after each change of the rate."""
        recipe, parameters = self.recipe, [*self.model.parameters()]
        rates = [recipe.rate_at(k) for k in range(recipe.iterations)]
        changes = [k for k in range(1, len(rates)) if rates[k] != rates[k - 1]]
        if len(changes) > _MOST_RATES:
            changes = changes[:: -(-len(changes) // _MOST_RATES)]
        gradients = [torch.ones_like(p) for p in parameters]
        self._engine = cast(Any, SimpleNamespace(step=lambda _: self._optimiser.step(gradients)))
        for self.iteration in sorted({0, *(k - 1 for k in changes), *changes}):
            at = self.iteration
            self.step()
            yield at, self._optimiser.rate, _size(torch.cat([p.flatten() for p in parameters]))

    def inputs(self) -> Iterator[tuple[str, Batch]]:
        """Yield some of the images as the net sees them, and what they are."""
        for k in (0, 1, 50):  # the last in another epoch
            yield f"images of iteration {k}", self.feed.make(self.feed.choices(k))
        averaged = next(self.feed.reestimation())
        yield "images of BN's averages", Batch(averaged, torch.zeros(len(averaged), dtype=torch.int64))
        yield "images of the test", next(self.feed.test(self._evaluations[0], _IMAGES))


def _small_images(classes: int) -> ImageDataset:
    """Return images whose pixels say which one they are of: image number, row and column.

    Rows and columns count backwards in every second image but the last, so that the mean image is almost constant.
    """
    numbers, rows, columns = np.meshgrid(np.arange(200), np.arange(_SIDE), np.arange(_SIDE), indexing="ij")
    backwards = (numbers % 2 == 1) & (numbers < 199)
    parts = (numbers, *(np.where(backwards, _SIDE - 1 - part, part) for part in (rows, columns)))
    images = np.stack(parts, axis=-1).astype(np.uint8)
    labels = np.arange(200) * 7 % classes
    return ImageDataset("cifar10", "pinned", "arithmetic", images, labels, images[::-1].copy(), labels, canonical=False)


def _place(feed: Feed, image: Tensor) -> str:
    """Say which of the small images an input of the net is, and how it has been moved."""
    middle = image.shape[1] // 2
    pair = image[:, middle, middle : middle + 2] * feed.std.view(3, 1) + feed.mean[:, :1, 0]
    (number, _), (row, _), (column, next_one) = (255 * pair.double()).round().int().tolist()
    last = image.shape[1] - 1
    if number % 2 and number < 199:
        row, column, next_one = last - row, last - column, last - next_one
    is_mirrored = next_one < column
    across = column - (last - middle) if is_mirrored else column - middle
    return f"{number} moved by ({row - middle}, {across}){', mirrored' * is_mirrored}"


class _PinnedFiles(ImageFiles):
    """Image files that exist in memory only."""

    def read(self, number: int) -> bytes:
        pixels = uniform((60 + number) * 90 * 3, "photograph", number).reshape(60 + number, 90, 3)
        data = io.BytesIO()
        Image.fromarray((127.5 * pixels + 127.5).astype(np.uint8)).save(data, "PNG")
        return data.getvalue()


def _photographs(classes: int, directory: Path) -> PhotoDataset:
    labels = np.arange(24) * 7 % classes
    nowhere = np.zeros(24, np.int64)
    files = _PinnedFiles(directory, labels, np.zeros((24, 32), np.uint8), ("",), nowhere, nowhere, nowhere)
    return PhotoDataset("imagenet", "pinned", "arithmetic", (), files, files, directory, canonical=False)


def training_facts(net: AnyNet, recipe: Recipe) -> Facts:
    """Return the facts of a net under a recipe."""
    with TemporaryDirectory() as directory:
        classes = net.num_classes
        dataset = _photographs(classes, Path(directory)) if recipe.photographs else _small_images(classes)
        with closing(_Rehearsal(net, recipe, dataset)) as rehearsal:
            exact: dict[str, tuple[str, ...]] = {}
            values: dict[str, tuple[float, ...]] = {}
            for what, batch in rehearsal.inputs():
                sides = batch.images.shape[2]
                quarters = batch.images[:, :, : sides // 2, : sides // 2].double().mean((1, 2, 3))
                values[what] = tuple(_rounded(one) for one in quarters)
                places = ["" if recipe.photographs else _place(rehearsal.feed, one) + ", " for one in batch.images]
                labels = batch.labels.tolist()
                exact[what] = tuple(f"{place}label {label}" for place, label in zip(places, labels, strict=True))
            side = net.size if isinstance(net, OwnNet) else 64 if recipe.photographs else _SIDE
            of_net = net_facts(rehearsal.model, side, rehearsal.gradients, rehearsal.decays())
            passed = (group[..., :side, :side].double() for group in islice(rehearsal.feed.reestimation(), 2))
            reestimate_batch_norm(rehearsal.model, passed, "fp32", _CPU)
            if (averages := _averages(rehearsal.model)) and "noise" not in dict(of_net.exact):
                values["BN's averages after a pass"] = averages
            rates = []
            for iteration, rate, size in rehearsal.updates():
                rates.append(f"iteration {iteration}: {rate:.9g}")
                values[f"parameters after iteration {iteration}"] = (size,)
    exact["learning rate"] = tuple(rates)
    if isinstance(net, OwnNet) and draws_noise(net):  # so not all values tell what its file imports
        exact["imported"] = tuple(f"{name}: {code}" for name, code in imported_beside(net).items())
    exact["recipe"] = tuple(f"{key}: {format_value(value)}" for key, value in recipe.defining_values().items())
    return Facts((*of_net.exact, *exact.items()), (*of_net.values, *values.items()))


def trained_as(net: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """Return text that is equal for equal trainings."""
    return canonical_json([net, recipe])


_known: dict[str, Facts] = {}


def facts_of(net: AnyNet, recipe: Recipe) -> Facts:
    """Return the facts of a net under a recipe, which are found out once in a process."""
    training = trained_as(net.canonical(), recipe.defining_values())
    if training not in _known:
        try:
            with neutral():
                layout(net)  # names what cannot be trained
                _known[training] = guarded(net, lambda: training_facts(net, recipe))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise RunError("the memory does not suffice to find out the facts of its net. Free some first.") from error
    return _known[training]


def model_facts(model: nn.Module, side: int) -> Facts:
    """Return the facts of any net that classifies images; the training loss is their cross-entropy.

    Args:
        model: As its library initialises it.
        side: Of its images, in pixels.
    """
    model = model.double()
    parameters = [*model.parameters()]

    def gradients(images: Tensor, labels: Tensor) -> Sequence[Tensor]:
        loss = F.cross_entropy(model(images), labels)
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        return [torch.zeros(()) if one is None else one for one in found]

    return net_facts(model, side, gradients)
