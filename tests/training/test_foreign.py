"""State dicts of other implementations, written here as plain functions with the names of their repositories."""

from __future__ import annotations

import argparse
import io
import os
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import Parameter

from paperbench.catalogue import Net, resolve
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.training.foreign import IMPLEMENTATIONS, load_state, read_state
from tests.limits import limit_address_space, limit_seconds


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


@pytest.mark.parametrize(
    ("mapping", "theirs", "name", "depth"),
    [
        ("akamaster", akamaster, "original_resnet20", 14),
        ("chenyaofo", chenyaofo, "original_resnet56", 14),
        ("bearpaw_resnet", bearpaw, "original_resnet164", 20),
    ],
)
def test_mapped_weights_give_the_same_logits(
    mapping: str, theirs: Callable[[Weights, Tensor], Tensor], name: str, depth: int
) -> None:
    weights, images = Weights(), torch.rand(2, 3, 32, 32, dtype=torch.float64)
    expected = theirs(weights, images)
    net = resolve(name, depth=depth, **IMPLEMENTATIONS[mapping].arguments)
    model = ResidualNet(net).double().eval()
    load_state(model, weights, Path("theirs"), mapping)
    with torch.no_grad():
        torch.testing.assert_close(model(images), expected, rtol=1e-10, atol=1e-10)


def small_net() -> Net:
    return resolve("original_resnet20", depth=8)


def test_mapping_that_does_not_fit_names_the_tensors() -> None:
    weights, file = Weights(), Path("theirs.th")
    chenyaofo(weights, torch.rand(1, 3, 32, 32, dtype=torch.float64))
    net = ResidualNet(resolve("original_resnet20", depth=14))
    with pytest.raises(PaperbenchError, match=r"theirs.th does not fit the net .*stages.1.0.shortcut.conv"):
        load_state(net, weights, file, "akamaster")
    with pytest.raises(PaperbenchError, match=r"gives several tensors of theirs.th one name"):
        load_state(net, {"linear.bias": torch.ones(10), "fc.bias": torch.ones(10)}, file, "akamaster")


State = dict[str, Tensor]


def below(prefix: str, state: State) -> State:
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def as_type(kind: torch.dtype | None, state: State) -> State:
    """Return the tensors as this type, without counters of batches, as older versions saved them."""
    return {name: tensor.to(kind or tensor.dtype) for name, tensor in state.items() if "num_" not in name}


def parameters(state: State) -> State:
    return OrderedDict((name, Parameter(t) if t.is_floating_point() else t) for name, t in state.items())


OTHERS = {
    "args": argparse.Namespace(score=np.float64(3), size=torch.Size([2]), when=datetime.now(UTC), where=Path("x")),
    "optimizer": {"state": {0: {"step": torch.ones(1)}}, "param_groups": [{"betas": (0.9, 0.999), "params": [0]}]},
    "best_acc1": torch.tensor(91.0),
    "rng": (np.random.default_rng(0).bit_generator.state, b"bytes", bytearray(3), {1, 2}, 1 << 200, Counter(a=1)),
    "config": {"model": {"type": "resnet"}, "names": ["a"], "ema": True},
}
"""What checkpoints hold beside weights."""

FORMS: dict[str, tuple[Callable[[State], object], str]] = {
    "plain": (lambda s: s, ""),
    "parameters": (parameters, ""),
    "half precision": (partial(as_type, torch.float16), ""),
    "bfloat16": (partial(as_type, torch.bfloat16), ""),
    "before counters": (partial(as_type, None), ""),
    "example": (lambda s: {"state_dict": s, "best_prec1": 91.0}, "state_dict, not averaged"),
    "kuangliu": (lambda s: {"net": below("module", s), "acc": 9}, "net.module, not averaged"),
    "torchvision": (lambda s: OTHERS | {"model": s}, "model, not averaged"),
    "tutorial": (lambda s: OTHERS | {"model_state_dict": s}, "model_state_dict, not averaged"),
    "Lightning": (
        lambda s: OTHERS | {"state_dict": below("model", s) | {"loss.weight": torch.ones(10)}},
        "state_dict.model, not averaged",
    ),
    "timm": (
        lambda s: OTHERS | {"state_dict": s, "state_dict_ema": {name: tensor + 1 for name, tensor in s.items()}},
        "state_dict, not averaged; its average state_dict_ema is not used",
    ),
    "only an average": (lambda s: OTHERS | {"model_ema": below("module", s)}, "model_ema.module, averaged"),
    "AveragedModel": (lambda s: {"n_averaged": torch.tensor(3), **below("module", s)}, "module, averaged"),
    "compiled, parallel": (lambda s: below("_orig_mod.module", s), "_orig_mod.module, not averaged"),
    "within others": (
        lambda s: {"model": {"model": {"state_dict": below("module.module", s)}}},
        "model.model.state_dict.module.module, not averaged",
    ),
}
FORMATS: dict[str, Callable[[Any, Path], object]] = {
    "zip": torch.save,
    "legacy": partial(torch.save, _use_new_zipfile_serialization=False),
    "protocol 4": partial(torch.save, pickle_protocol=4),
    "safetensors": save_file,
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("form", FORMS)
def test_usual_files_of_weights_are_read(form: str, kind: str, tmp_path: Path) -> None:
    saved, loaded, (make, entry) = ResidualNet(small_net()), ResidualNet(small_net()), FORMS[form]
    made: Any = make(saved.state_dict())
    if kind == "safetensors" and not all(isinstance(value, Tensor) for value in made.values()):
        pytest.skip("holds tensors only")
    FORMATS[kind](made, tmp_path / "weights")
    tensors, _, found = read_state(tmp_path / "weights")
    assert found == (f" (its {entry})" if entry else "")
    load_state(loaded, tensors, tmp_path)
    for name, tensor in saved.state_dict().items():
        rounded = {"half precision": torch.float16, "bfloat16": torch.bfloat16}.get(form, tensor.dtype)
        expected = tensor.to(rounded).to(tensor.dtype) if tensor.is_floating_point() else tensor
        torch.testing.assert_close(loaded.state_dict()[name], expected, rtol=0, atol=0)


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_are_those_that_torch_reads(legacy: bool, tmp_path: Path) -> None:
    whole, image = torch.randn(4, 6), torch.randn(1, 3, 2, 2).to(memory_format=torch.channels_last)
    state = {"whole": whole, "view": whole.t()[1:, ::2], "row": whole[3], "image": image}
    state |= {"none": torch.zeros(0, 3), "scalar": torch.tensor(3), "expanded": torch.ones(1).expand(9)}
    for kind in ("uint8", "int16", "int32", "bool", "float64", "complex64", "float8_e4m3fn", "uint16", "bfloat16"):
        if not (legacy and kind in ("float8_e4m3fn", "uint16")):  # which that format lacks
            state[kind] = torch.arange(5).to(getattr(torch, kind))
    torch.save(state, tmp_path / "state", _use_new_zipfile_serialization=not legacy)
    expected, found = torch.load(tmp_path / "state", weights_only=True), read_state(tmp_path / "state")[0]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].stride()) == (tensor.dtype, tensor.stride())
        assert torch.equal(found[name], tensor)
    assert found["view"].untyped_storage().data_ptr() == found["whole"].untyped_storage().data_ptr()


def test_older_names_of_torchvisions_densenet(tmp_path: Path) -> None:
    with torch.device("meta"):
        names = list(torchvision.models.densenet121().state_dict())
    older = [re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", name) for name in names]
    assert "features.denseblock1.denselayer1.norm.1.weight" in older
    torch.save({name: torch.zeros(1) for name in older}, tmp_path / "densenet")
    assert list(read_state(tmp_path / "densenet")[0]) == names


class Call:
    """Is pickled as a call; `torch.save` writes no such files."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.arguments


class Stored:
    """Is pickled as a reference to the storage "0"."""

    def __init__(self, *rest: object) -> None:
        self.identifier = ("storage", torch.FloatStorage, "0", "cpu", *rest)


def pickled(value: object, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol)
    pickler.persistent_id = lambda part: part.identifier if isinstance(part, Stored) else None  # type: ignore[method-assign]
    pickler.dump(value)
    return stream.getvalue()


def zipped(contents: bytes, values: bytes = bytes(16), order: str = "little", **options: Any) -> bytes:
    stream = io.BytesIO()
    with ZipFile(stream, "w", **options) as archive:
        for name, part in {"data.pkl": contents, "data/0": values, "byteorder": order, "version": "3"}.items():
            archive.writestr(f"weights/{name}", part)
    return stream.getvalue()


def in_legacy_format(contents: bytes, keys: bytes) -> bytes:
    header = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    return header + contents + keys + (4).to_bytes(8, "little") + bytes(16)


TENSOR = Call(torch._utils._rebuild_tensor, Stored(4), 0, (4,), (1,))
VALUES = np.arange(4, dtype=np.float32)
OLDER: dict[str, tuple[bytes, list[float]]] = {
    "big-endian": (zipped(pickled({"x": TENSOR}), VALUES.byteswap().tobytes(), "big"), [0, 1, 2, 3]),
    "Python 2": (zipped(pickled(Call(OrderedDict, [["x", TENSOR]])), VALUES.tobytes()), [0, 1, 2, 3]),
    "parameter": (zipped(pickled({"x": Call(Parameter, TENSOR)}), VALUES.tobytes()), [0, 1, 2, 3]),
}


@pytest.mark.parametrize("kind", OLDER)
def test_older_files_are_read_as_by_torch(kind: str, tmp_path: Path) -> None:
    data, expected = OLDER[kind]
    (tmp_path / "weights").write_bytes(data)
    assert read_state(tmp_path / "weights")[0]["x"].tolist() == expected
    assert torch.load(tmp_path / "weights", weights_only=True)["x"].tolist() == expected


NESTED = b"q\0h\0\x86" * 60
"""Makes of the last value tuples in tuples."""


def written(data: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(data)


def hostile(*operations: bytes) -> Callable[[Path], object]:
    """Return what writes a file with a pickle of these operations."""
    return written(zipped(b"\x80\x02" + b"".join(operations) + b"."))


def claimed(*arguments: object) -> Callable[[Path], object]:
    """Return what writes a file with a tensor of this offset, size and strides."""
    tensor = Call(torch._utils._rebuild_tensor_v2, Stored(4), *arguments, False, OrderedDict())
    return written(zipped(pickled({"x": tensor})))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda _: None, "No such file"),
    "directory": (Path.mkdir, "cannot be read"),
    "pipe": (os.mkfifo, "not a regular file"),
    "empty": (Path.touch, "cannot be read as weights"),
    "text": (lambda file: file.write_text("weights"), "cannot be read as weights"),
    "pickle": (written(pickle.dumps(Call(os.mkdir, "executed"))), "cannot be read as weights"),
    "code": (lambda file: torch.save({"x": Call(os.mkdir, "executed")}, file), r"holds no state dict.* `torch.save"),
    "module": (lambda file: torch.save(torch.nn.Linear(1, 1), file), r"Save only the tensors: `torch.save"),
    "number": (lambda file: torch.save(3, file), "holds no state dict"),
    "sparse": (lambda file: torch.save({"x": torch.ones(3).to_sparse()}, file), "holds no state dict"),
    "conjugate": (lambda file: torch.save({"x": torch.ones(1, dtype=torch.complex64).conj()}, file), "holds no state"),
    "cut off": (
        written(in_legacy_format(pickled(Stored(4)), pickle.dumps(["0"]))[:-1]),
        "values of a tensor are missing",
    ),
    "nothing": (lambda file: torch.save({}, file), "holds no state dict"),
    "compressed": (
        written(zipped(pickled({}), bytes(10**8), compression=ZIP_DEFLATED)),
        "its parts are compressed",
    ),
    "tuples in tuples": (hostile(b"})", NESTED, b"Ns"), "holds no state dict"),
    "tuples in a set": (hostile(b"cbuiltins\nset\n])", NESTED, b"a\x85R"), "holds no state dict"),
    "tuples in a key": (written(in_legacy_format(pickled(Stored(4)), b"\x80\2])" + NESTED + b"a.")), "cannot be read"),
    "tuples in a type": (
        hostile(b"ctorch._utils\n_rebuild_tensor_v3\n(", pickled(Stored(4))[2:-1], b"K\0))NNN)", NESTED, b"\x86tR"),
        "holds no state dict",
    ),
    "more than is stored": (written(zipped(pickled(Stored(2**40)))), "its tensors are larger than the file"),
    "bytearray": (hostile(b"cbuiltins\nbytearray\n\x8a\x05", (3 * 10**9).to_bytes(5, "little"), b"\x85R"), "holds no"),
    "bytearray of protocol 5": (hostile(b"\x96", (3 * 10**9).to_bytes(8, "little")), "cannot be read"),
    "a list read again": (
        hostile(b"ccollections\nOrderedDict\nq\1]q\0(", b"]" * 30_000, b"e0", b"h\1h\0\x85R0" * 30_000, b"}"),
        "holds no state dict",
    ),
    "far memo": (hostile(b"}r\xff\xff\xff\x7f"), "holds no state dict"),
    "long pickles": (written(3 * (b"\x80\2(" + b"N" * 700_000 + b"t.")), "its pickle is too long"),
    "long integers": (
        hostile(b"\x8b", (10**6).to_bytes(4, "little"), bytes(10**6), b"q\0", b"h\0h\0\x86" * 10**5),
        "holds",
    ),
    "mapping of itself": (hostile(b"}q\0(X\5\0\0\0modelh\0X\3\0\0\0neth\0u"), "holds no state dict"),
    "many dimensions": (claimed(0, (1,) * 10**5, (1,) * 10**5), "holds no state dict"),
    "beyond the storage": (claimed(0, (2, 4), (4, 1)), "cannot be read"),
    "far offset": (claimed(1 << 62, (1,), (1,)), "cannot be read"),
    "overflow": (claimed(0, (1 << 32, 1 << 32), (1 << 32, 1 << 32)), "cannot be read"),
    "negative size": (claimed(0, (-1,), (1,)), "cannot be read"),
    "negative stride": (claimed(3, (2,), (-1,)), "cannot be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_file_without_weights_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write, message = BAD[kind]
    write(Path("weights.pth"))
    with limit_seconds(), limit_address_space(), pytest.raises(PaperbenchError, match=f"weights.pth.*{message}"):
        read_state(Path("weights.pth"))
    assert not Path("executed").exists()


def test_weights_for_other_classes_are_refused() -> None:
    weights = ResidualNet(replace(small_net(), num_classes=11)).state_dict()
    with pytest.raises(PaperbenchError, match=r"does not fit the net and the classes .* fc.weight"):
        load_state(ResidualNet(small_net()), weights, Path("weights"))
