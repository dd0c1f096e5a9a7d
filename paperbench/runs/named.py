"""What users name: runs, files of weights that paperbench wrote, and nets of the catalogue, each with its images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.catalogue import DATASETS, Net, resolve, tags
from paperbench.data.dataset import ImageDataset
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.sources import find_dataset, load_dataset
from paperbench.errors import PaperbenchError
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.experiment import NetReference

if TYPE_CHECKING:
    from torch import Tensor

Images = ImageDataset | PhotoDataset


@dataclass(frozen=True)
class NamedNet:
    """A net of ours, and images for it.

    Attributes:
        reference: The model name and arguments for timm.
        net: With one output per class of the data set.
        file: Of its weights; None at initialisation.
        tensors, metadata, entry: What `read_state` finds in the file.
    """

    reference: str
    net: Net
    dataset: Images
    file: Path | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""


def find_run(name: str, store: Store, hint: str = "") -> tuple[RunDirectory, Record]:
    """Return a run, given its id or its directory, and its record; `hint` says what to do if there is none."""
    for run in (RunDirectory(Path(name).absolute()), store.directory(name)):
        if run.record_file.exists() and (record := run.read_record()):
            return run, record
    raise PaperbenchError(f"{store.root} has no run {name}, and {name} is not a run directory.{hint}")


def find_finished_run(name: str, store: Store, hint: str = "") -> tuple[RunDirectory, Record]:
    """Return a run that has a result, as `find_run` does."""
    run, record = find_run(name, store, hint)
    if record.result is None:
        raise PaperbenchError(f"{run.path} holds no finished run. Finish it, or name another.")
    return run, record


def images_of(run: RunDirectory, record: Record, where: Path, dataset: str | None = None) -> Images:
    """Return the images of a data directory on which a run trains; `dataset` is their key, if it is known."""
    classes = record.spec.net.get("num_classes")
    keys = [dataset] if dataset else [key for key, one in DATASETS.items() if one.num_classes == classes]
    if images := find_dataset(record.spec.data, keys, where):
        return images
    other = f" To use the net on other images, name {run.weights_file} instead of the run." if record.result else ""
    raise PaperbenchError(
        f"{record.run} was trained on {record.data.name}, which is not in {where}. Name its place with --data.{other}"
    )


def resolve_net(name: str, arguments: Mapping[str, Any], where: Path, dataset: str | None = None) -> NamedNet:
    """Return a net of the catalogue on a data set: by default that of the name's tag, else the first of its tags."""
    bare, _, tag = name.partition(".")
    net = resolve(name, **arguments)
    key = dataset or tag or tags(bare)[0]
    images = load_dataset(key, where)
    net = replace(net, num_classes=DATASETS[key].num_classes)
    return NamedNet(str(NetReference(name, arguments)), net, images)


def read_net(file: Path, where: Path, dataset: str | None = None) -> NamedNet:
    """Return the net in a file of weights on a data set: by default the one on which it was trained."""
    from paperbench.models.parts import MEAN_IMAGE
    from paperbench.models.weights_file import net_of
    from paperbench.training.foreign import read_state

    tensors, metadata, entry = read_state(file)
    if "architecture" not in metadata:
        raise PaperbenchError(
            f"{file} does not say which net it holds, as files of paperbench do. Name another; or test the net with "
            "`paperbench evaluate`: its name, the file with --weights, and the rest with --mapping."
        )
    _, arguments = net_of(metadata, file)
    if not (key := dataset or metadata.get("tag")):
        if (images := find_dataset(metadata.get("data_fingerprint", ""), DATASETS, where)) is None:
            raise PaperbenchError(f"{file} was trained on {metadata.get('data')!r}. Name a data set with --dataset.")
        key = images.key
    named = resolve_net(metadata["architecture"], arguments, where, key)
    if MEAN_IMAGE in tensors:  # of an export, which subtracts it itself
        metadata["mean"] = json.dumps(tensors.pop(MEAN_IMAGE).tolist())
    return replace(named, file=file, tensors=tensors, metadata=metadata, entry=entry)
