"""State dicts of other implementations, written here as plain functions with the names of their repositories."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from paperbench.catalogue import Net, resolve
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.specs.mapping import load_mapping
from paperbench.training.foreign import load_state, read_state
from tests.limits import limit_seconds


class Weights(dict[str, Tensor]):
    """A state dict whose random tensors are made when they are first used."""

    def __init__(self) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(1)

    def _tensor(self, name: str, shape: tuple[int, ...], low: float = -0.5) -> Tensor:
        if name not in self:
            drawn = torch.rand(shape, generator=self._random, dtype=torch.float64)
            self[name] = (drawn + low) * (1 if len(shape) == 1 else 2 / shape[1] ** 0.5)
        return self[name]

    def conv(self, name: str, x: Tensor, outputs: int, kernel: int = 3, stride: int = 1) -> Tensor:
        weight = self._tensor(f"{name}.weight", (outputs, x.shape[1], kernel, kernel))
        return F.conv2d(x, weight, stride=stride, padding=kernel // 2)

    def bn(self, name: str, x: Tensor) -> Tensor:
        parts = (("running_mean", -0.5), ("running_var", 0.5), ("weight", 0.5), ("bias", -0.5))
        return F.batch_norm(x, *(self._tensor(f"{name}.{part}", (x.shape[1],), low) for part, low in parts))

    def linear(self, name: str, x: Tensor) -> Tensor:
        parts = (self._tensor(f"{name}.weight", (10, x.shape[1])), self._tensor(f"{name}.bias", (10,)))
        return F.linear(x.mean((2, 3)), *parts)


def original(w: Weights, x: Tensor, shortcut: Callable[[str, Tensor, int], Tensor], classifier: str) -> Tensor:
    """ResNet-14 with basic units."""
    x = F.relu(w.bn("bn1", w.conv("conv1", x, 16)))
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for unit in range(2):
            name, stride = f"layer{stage}.{unit}", 2 if unit == 0 and stage > 1 else 1
            y = F.relu(w.bn(f"{name}.bn1", w.conv(f"{name}.conv1", x, width, stride=stride)))
            y = w.bn(f"{name}.bn2", w.conv(f"{name}.conv2", y, width))
            x = F.relu(y + (shortcut(name, x, width) if stride == 2 else x))
    return w.linear(classifier, x)


def akamaster(w: Weights, x: Tensor) -> Tensor:
    def padded(_: str, x: Tensor, width: int) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, width // 4, width // 4))

    return original(w, x, padded, "linear")


def chenyaofo(w: Weights, x: Tensor) -> Tensor:
    def projected(name: str, x: Tensor, width: int) -> Tensor:
        return w.bn(f"{name}.downsample.1", w.conv(f"{name}.downsample.0", x, width, kernel=1, stride=2))

    return original(w, x, projected, "fc")


def bearpaw(w: Weights, x: Tensor) -> Tensor:
    """ResNet-20 with bottleneck units."""
    x = F.relu(w.bn("bn1", w.conv("conv1", x, 16)))
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for unit in range(2):
            name, stride = f"layer{stage}.{unit}", 2 if unit == 0 and stage > 1 else 1
            y = F.relu(w.bn(f"{name}.bn1", w.conv(f"{name}.conv1", x, width, kernel=1)))
            y = F.relu(w.bn(f"{name}.bn2", w.conv(f"{name}.conv2", y, width, stride=stride)))
            y = w.bn(f"{name}.bn3", w.conv(f"{name}.conv3", y, 4 * width, kernel=1))
            if unit == 0:
                x = w.conv(f"{name}.downsample.0", x, 4 * width, kernel=1, stride=stride)
                x = w.bn(f"{name}.downsample.1", x)
            x = F.relu(x + y)
    return w.linear("fc", x)


def padded_preact(w: Weights, x: Tensor) -> Tensor:
    """ResNet-20 with bottleneck units, pre-activation and zeros on both sides: the net of no repository."""
    x = w.conv("conv1", x, 16)
    for stage, width in ((1, 16), (2, 32), (3, 64)):
        for unit in range(2):
            name, stride = f"layer{stage}.{unit}", 2 if unit == 0 and stage > 1 else 1
            activated = F.relu(w.bn(f"{name}.bn1", x))
            y = w.conv(f"{name}.conv1", activated, width, kernel=1, stride=stride)
            y = w.conv(f"{name}.conv2", F.relu(w.bn(f"{name}.bn2", y)), width)
            y = w.conv(f"{name}.conv3", F.relu(w.bn(f"{name}.bn3", y)), 4 * width, kernel=1)
            if unit == 0:
                zeros = (4 * width - x.shape[1]) // 2
                x = F.pad(activated[:, :, ::stride, ::stride], (0, 0, 0, 0, zeros, zeros))
            x = x + y
    return w.linear("fc", F.relu(w.bn("bn", x)))


OWN = r"""
schema: 1
mapping: own
source: a test
arguments: {shortcut_option: A}
shortcut_padding: both
inputs: {cifar10: {mean: [0.5, 0.5, 0.5], std: [1, 1, 1]}}
names:
  - ['^conv1\.', stem.conv.]
  - ['^bn\.', tail.bn.]
  - ['^layer1\.', stages.0.]
  - ['^layer2\.', stages.1.]
  - ['^layer3\.', stages.2.]
  - ['^(stages\.\d\.\d+)\.bn1\.', '\1.preactivation.bn.']
  - ['^(stages\.\d\.\d+)\.bn2\.', '\1.residual.bn1.']
  - ['^(stages\.\d\.\d+)\.bn3\.', '\1.residual.bn2.']
  - ['^(stages\.\d\.\d+)\.conv', '\1.residual.conv']
"""


@pytest.mark.parametrize(
    ("mapping", "theirs", "name", "depth"),
    [
        ("akamaster", akamaster, "original_resnet20", 14),
        ("chenyaofo", chenyaofo, "original_resnet56", 14),
        ("bearpaw_resnet", bearpaw, "original_resnet164", 20),
        ("own", padded_preact, "preact_resnet164", 20),
    ],
)
def test_mapped_weights_give_the_same_logits(
    mapping: str, theirs: Callable[[Weights, Tensor], Tensor], name: str, depth: int, tmp_path: Path
) -> None:
    if mapping == "own":
        (tmp_path / "own.yaml").write_text(OWN)
        mapping = str(tmp_path / "own.yaml")
    weights, images = Weights(), torch.rand(2, 3, 32, 32, dtype=torch.float64)
    expected = theirs(weights, images)
    declared = load_mapping(mapping)
    net = resolve(name, depth=depth, **declared.arguments)
    model = ResidualNet(net).double().eval()
    load_state(model, weights, Path("theirs"), declared)
    with torch.no_grad():
        torch.testing.assert_close(model(images), expected, rtol=1e-10, atol=1e-10)


def small_net() -> Net:
    return resolve("original_resnet20", depth=8)


def test_mapping_that_does_not_fit_names_the_tensors() -> None:
    weights, file = Weights(), Path("theirs.th")
    chenyaofo(weights, torch.rand(1, 3, 32, 32, dtype=torch.float64))
    net = ResidualNet(resolve("original_resnet20", depth=14))
    with pytest.raises(PaperbenchError, match=r"theirs.th does not fit the net .*stages.1.0.residual.downsample.0"):
        load_state(net, weights, file, load_mapping("akamaster"))
    several = replace(load_mapping("akamaster"), names=((".*", "fc.weight"),))
    with pytest.raises(PaperbenchError, match=r"gives several tensors of theirs.th one name"):
        load_state(net, weights, file, several)
    projected = ResidualNet(resolve("original_resnet20", depth=14, shortcut_option="B"))
    both = replace(load_mapping("chenyaofo"), shortcut_padding="both")
    with pytest.raises(PaperbenchError, match="is for nets whose shortcuts are padded"):
        load_state(projected, weights, file, both)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("- [", "- ['(', x]\n  - ["), r"own.yaml.*is no regular expression"),
        (("- [", "- [x, '\\1']\n  - ["), "invalid group reference"),
        (("both", "front"), "shortcut_padding"),
        (("mapping: own", "mapping: other"), "must be own, like the file name"),
    ],
)
def test_mistakes_in_a_mapping_are_named(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN.replace(*change, 1))
    with pytest.raises(PaperbenchError, match=message):
        load_mapping(str(file))


def test_unknown_mapping_suggests_the_nearest() -> None:
    with pytest.raises(PaperbenchError, match=r"Unknown mapping 'akamster'. Did you mean 'akamaster'\?"):
        load_mapping("akamster")


FORMS: dict[str, Callable[[dict[str, Tensor], Path], object]] = {
    "plain": torch.save,
    "older format": lambda state, file: torch.save(state, file, _use_new_zipfile_serialization=False),
    "safetensors": lambda state, file: save_file(state, file),
    "checkpoint": lambda state, file: torch.save({"state_dict": state, "best_prec1": 91.0, "epoch": 3}, file),
    "DataParallel": lambda state, file: torch.save({f"module.{name}": t for name, t in state.items()}, file),
    "half precision": lambda state, file: torch.save({n: t.half() for n, t in state.items() if "num_" not in n}, file),
    "before counters": lambda state, file: torch.save({n: t for n, t in state.items() if "num_" not in n}, file),
}


@pytest.mark.parametrize("form", FORMS)
def test_usual_files_of_weights_are_read(form: str, tmp_path: Path) -> None:
    saved, loaded = ResidualNet(small_net()), ResidualNet(small_net())
    FORMS[form](saved.state_dict(), tmp_path / "weights")
    load_state(loaded, read_state(tmp_path / "weights")[0], tmp_path)
    for name, tensor in saved.state_dict().items():
        expected = tensor.half().float() if form == "half precision" and tensor.is_floating_point() else tensor
        torch.testing.assert_close(loaded.state_dict()[name], expected, rtol=0, atol=0)


class Malicious:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("executed",)


def inflating(file: Path) -> None:
    with ZipFile(file, "w", ZIP_DEFLATED) as archive, archive.open("weights/data/0", "w") as part:
        for _ in range(2_100):
            part.write(bytes(10**6))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda _: None, "No such file"),
    "directory": (Path.mkdir, "cannot be read"),
    "pipe": (os.mkfifo, "not a regular file"),
    "empty": (Path.touch, "cannot be read as weights"),
    "text": (lambda file: file.write_text("weights"), "cannot be read as weights"),
    "pickle": (lambda file: file.write_bytes(pickle.dumps(Malicious())), "cannot be read as weights"),
    "code": (
        lambda file: torch.save({"x": Malicious()}, file),
        r"\(not only tensors\)\. Save only the tensors: `torch.save",
    ),
    "module": (lambda file: torch.save(torch.nn.Linear(1, 1), file), r"Save only the tensors: `torch.save"),
    "number": (lambda file: torch.save(3, file), "holds no state dict"),
    "sparse": (lambda file: torch.save({"x": torch.ones(3).to_sparse()}, file), "holds no state dict"),
    "nothing": (lambda file: torch.save({}, file), "holds no state dict"),
    "inflating": (inflating, "its parts are too large"),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.full if k == "inflating" else ()) for k in BAD])
def test_file_without_weights_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write, message = BAD[kind]
    write(Path("weights.pth"))
    with limit_seconds(), pytest.raises(PaperbenchError, match=f"weights.pth.*{message}"):
        read_state(Path("weights.pth"))
    assert not Path("executed").exists()


def test_weights_for_other_classes_are_refused() -> None:
    weights = ResidualNet(replace(small_net(), num_classes=11)).state_dict()
    with pytest.raises(PaperbenchError, match=r"does not fit the net and the classes .* fc.weight"):
        load_state(ResidualNet(small_net()), weights, Path("weights"))
