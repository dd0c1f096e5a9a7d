"""The feed of photographs: threads read, decode and crop them; colours, mean and mirroring follow on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from torch import Tensor

from paperbench.data.imagenet.batches import CentralCrops, Crops, CropSource, TrainingCrops, require_images
from paperbench.data.imagenet.colours import ColourChoices, ColourTransform
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.mean_image import mean_images
from paperbench.data.imagenet.stream import CropStream
from paperbench.data.loader import Batch, Choices
from paperbench.data.share import WHOLE, Share
from paperbench.processors import processors
from paperbench.specs.recipe import ChannelValues, Evaluation, Recipe
from paperbench.streams import Count


class PhotoFeed:
    """The feed of photographs; see `ImageFeed`."""

    def __init__(
        self,
        dataset: PhotoDataset,
        recipe: Recipe,
        seed: int,
        device: torch.device,
        between_batches: Callable[[], None],
        announce: Callable[[str], None],
    ) -> None:
        assert recipe.photographs  # noqa: S101  (tables are checked for it)
        require_images(dataset.test)  # before hours of training
        self._dataset, self._recipe, self._settings = dataset, recipe, recipe.photographs
        self.device = device
        self._between_batches, self._announce = between_batches, announce
        self.test_batch = 20 if device.type == "cpu" else 250
        self._means: dict[Evaluation, Tensor] = {}
        crop = self._settings.crop
        training = Evaluation(crop, self._settings.mean_image_scale or crop)
        values = self._input_values(training, *recipe.evaluations.values())
        mean = values.mean((0, 1)) if isinstance(values, Tensor) else torch.tensor(values.mean)
        std = torch.ones(3) if isinstance(values, Tensor) else torch.tensor(values.std)
        self.mean, self.std = mean.view(3, 1, 1), std.view(3, 1, 1)
        self._training_transform = self._transform(values)
        flip, has_short_batches = recipe.augmentation.flip, recipe.epoch_end == "short_batch"
        self._training_crops = partial(
            TrainingCrops, dataset.train, self._settings, flip=flip, has_short_batches=has_short_batches, seed=seed
        )
        self.share = WHOLE
        self._stream: CropStream | None = None
        self._last: tuple[int, Share] | None = None  # iteration and share of the choices
        self._choices: Choices = ()

    def choices(self, iteration: int) -> Choices:
        last, self._last = self._last, None  # in case that the batch cannot be made
        if last != (iteration, self.share):
            if self._stream is None or last != (iteration - 1, self.share):
                self.close()
                rows = partial(self.share.rows, self._recipe)
                crops = self._training_crops(batch_size=self._recipe.batch_size, rows=rows)
                # Beside training, a CPU has enough to do, and one thread is fast enough for it.
                threads = 1 if self.device.type == "cpu" else processors()
                self._stream = self._open(crops, threads, iteration)
            self._choices = _on_device(next(self._stream), self.device)
        self._last = iteration, self.share
        return self._choices

    def make(self, choices: Choices) -> Batch:
        pixels, labels, *colours = choices
        return Batch(self._training_transform(pixels, ColourChoices(*colours)), labels)

    def schedule(self, iterations: int) -> None:  # noqa: ARG002
        return None

    def test(self, evaluation: Evaluation | None, batch_size: int) -> Iterator[Batch]:
        if evaluation is None:
            raise ValueError("photographs are tested on crops")
        transform = self._transform(self._input_values(evaluation))
        source = CentralCrops(self._dataset.test, self._settings, evaluation, batch_size=batch_size)
        for crops in self._pass(source):
            pixels, labels, *_ = _on_device(crops, self.device)
            yield Batch(transform(pixels), labels)

    def reestimation(self) -> Iterator[Tensor]:
        group = self._recipe.batch_norm.group
        tell = self._progress("averaging BN statistics")
        source = self._training_crops(batch_size=group, purpose="batch-norm")
        numbers = range(self.share.rank, len(self._dataset.train) // group, self.share.processes)
        for number, crops in zip(numbers, self._pass(source), strict=False):
            pixels, _, *colours = _on_device(crops, self.device)
            yield self._training_transform(pixels, ColourChoices(*colours))
            tell((number + 1) * group)

    def advice(self) -> str | None:
        return self._stream.advice() if self._stream else None

    def close(self) -> None:
        if self._stream:
            self._stream.close()
        self._stream, self._last, self._choices = None, None, ()

    def _input_values(self, evaluation: Evaluation, *others: Evaluation) -> ChannelValues | Tensor:
        """Return the recipe's values per channel, or else the mean image of the training images' central crops.

        Args:
            others: Evaluations whose mean images will be needed, too.
        """
        if isinstance(self._recipe.input, ChannelValues):
            return self._recipe.input
        if evaluation not in self._means:
            told = self._progress("mean image, computed once")
            self._means |= mean_images(self._dataset, self._settings, (evaluation, *others), told)
        return self._means[evaluation]

    def _transform(self, values: ChannelValues | Tensor) -> ColourTransform:
        return ColourTransform(values, has_jitter=bool(self._settings.jitter), device=self.device)

    def _progress(self, what: str) -> Callable[[int], None]:
        """Return a function that takes the number of training images read so far, and announces it now and then."""
        counted = Count(what, "training images", total=len(self._dataset.train))

        def tell(done: int) -> None:
            self._between_batches()
            counted.tell(self._announce, done)

        return tell

    def _open(self, source: CropSource, threads: int, start: int, step: int = 1) -> CropStream:
        return CropStream(source, start=start, step=step, threads=threads, pinned=self.device.type == "cuda")

    def _pass(self, source: CropSource) -> Iterator[Crops]:
        """Yield this process's batches of a source; each is valid until the next."""
        with self._open(source, processors(), self.share.rank, self.share.processes) as stream:
            for crops in stream:
                self._between_batches()
                yield crops


def _on_device(crops: Crops, device: torch.device) -> Choices:
    """Return the tensors of crops on the device: pixels, labels and, in training, the colours."""
    parts = crops.pixels, crops.labels, *(crops.colours or ())
    if device.type == "cpu":
        return parts
    copies = _copies_to(device)
    with torch.cuda.stream(copies):
        moved = tuple(part.to(device, non_blocking=True) for part in parts)
    copies.synchronize()  # the host's memory is overwritten soon; kernels of earlier steps may go on
    for part in moved:
        part.record_stream(torch.cuda.current_stream(device))
    return moved


@cache
def _copies_to(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
