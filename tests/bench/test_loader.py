from __future__ import annotations

import io
import statistics
from pathlib import Path

import pytest
import torch

from paperbench.bench import loader
from paperbench.bench.figures import LoaderReport, LoaderRow
from paperbench.bench.setup import machine_facts
from paperbench.bench.text import format_loader
from paperbench.cli.main import main
from paperbench.data.imagenet.build import index_images
from paperbench.data.sources import load_index
from paperbench.errors import PaperbenchError
from paperbench.typed import from_json
from tests.data.imagenet.miniature import SYNSETS, examples, write_folders


def rows_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images, one per batch, and two cores."""
    monkeypatch.setattr(loader, "IMAGES", 2)
    monkeypatch.setattr(loader, "BATCH_SIZE", 1)
    monkeypatch.setattr(loader, "processors", lambda: 2)


def test_real_measurement_prints_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loader.json"
    assert main(["bench", "--loader", "--rounds=3", "--seconds=0.001", "--json", str(file)]) == 0
    printed = capsys.readouterr()
    found = from_json(LoaderReport, file.read_text(encoding="utf-8"))
    assert "Images: scikit-learn's two photographs, 273,280 pixels and" in printed.out
    assert (found.cores, found.pixels, list(found.recipes)) == (2, 640 * 427, ["imagenet", "imagenet_torch"])
    for recipe, rows in found.recipes.items():
        assert [row.name for row in rows] == [f"{recipe}: {way}" for way in ("plain loop", "1 thread", "2 threads")]
        assert [row.threads for row in rows] == [None, 1, 2]
    for row in [*found.decoding, *(row for rows in found.recipes.values() for row in rows)]:
        assert len(row.image_seconds) == 3
        speed = 1 / statistics.median(row.image_seconds)
        assert any(
            line.startswith(f"{row.name} {speed:,.0f} ") or line == f"{row.name} {speed:,.0f}"
            for line in rows_of(printed.out)
        )
    assert printed.err.count("round ") == 3


def a_report() -> LoaderReport:
    def row(name: str, threads: int | None, *seconds: float) -> LoaderRow:
        return LoaderRow(name, threads, seconds)

    return LoaderReport(
        schema=1,
        machine=machine_facts(torch.device("cpu")),
        images="256 training images of ImageNet",
        pixels=200_000.4,
        bytes=110_000.0,
        cores=2,
        decoding=(
            row("decode, Pillow", None, 0.001, 0.001, 0.002),
            row("decode, TorchCodec", None, 0.001, 0.001, 0.001),
        ),
        recipes={
            "imagenet": (
                row("imagenet: plain loop", None, 0.002, 0.002, 0.002),
                row("imagenet: 1 thread", 1, 0.002, 0.0025, 0.002),
                row("imagenet: 16 threads", 16, 0.001, 0.001, 0.001),
            )
        },
    )


def test_ratios_are_medians_of_rounds_with_their_spread() -> None:
    text = format_loader(a_report())
    assert {
        "decode, Pillow 1,000",
        "decode, TorchCodec 1,000 1.00 ±1.00",
        "imagenet: plain loop 500 0.50 ±0.50",
        "imagenet: 1 thread 500 0.50 ±0.50 1.00 ±0.20",
        "imagenet: 16 threads 1,000 1.00 ±1.00 2.00 ±0.00 2.00 ±0.50",
        "Images: 256 training images of ImageNet, 200,000 pixels and 110,000 bytes on",
    } <= set(rows_of(text))
    assert max(map(len, text.splitlines())) <= 80


def test_cores_for_a_step_are_rounded_up() -> None:
    # 256 images at 2 ms each are 512 ms of work
    assert "imagenet 11 6 3 2" in rows_of(format_loader(a_report()))


def test_images_are_spread_over_the_index_of_the_data_directory(tmp_path: Path) -> None:
    index_images(write_folders(tmp_path / "images"), tmp_path, io.StringIO(), threads=1, accepts_subset=True)
    files, title = loader.sample_images(load_index(tmp_path).dataset())
    assert title == "2 training images of ImageNet (subset: 20 + 10 images)"
    for number, synset in enumerate((SYNSETS[0], SYNSETS[-1])):
        assert files.read(number) in {example.data for example in examples() if example.synset == synset}
    for file in (tmp_path / "images" / "train").glob("*/*"):
        file.unlink()
    index_images(tmp_path / "images", tmp_path, io.StringIO(), threads=1, accepts_subset=True)
    with pytest.raises(PaperbenchError, match="lacks all training or all test images"):
        loader.sample_images(load_index(tmp_path).dataset())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--loader --models preact_resnet20", "--loader takes only"),
        ("--loader --engines eager", "--loader takes only"),
        ("--loader --precisions fp32", "--loader takes only"),
        ("--loader --batch-size 8", "--loader takes only"),
        ("--loader --minutes 8", "--loader takes only"),
        ("--loader --device cpu", "--loader takes only"),
        ("--data data", "--data is for --loader alone"),
        ("--loader --data no/such/folder", "imagenet"),
    ],
)
def test_invalid_arguments_fail_before_any_measurement(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments.split()]) == 2
    assert message.lower() in capsys.readouterr().err.lower()
