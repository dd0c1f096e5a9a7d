from __future__ import annotations

import gzip
import re
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from paperbench.data.imagenet.layout import Layout, find_layout
from paperbench.errors import PaperbenchError
from tests.data.imagenet import miniature
from tests.data.imagenet.miniature import SYNSETS as CLASSES
from tests.data.imagenet.miniature import examples, meta, of
from tests.limits import limit_seconds

IDS = dict(zip(miniature.DEVKIT_IDS, CLASSES, strict=True))
"""The development kit's numbers, in an order of their own."""
VALIDATION = [image.synset for image in of("test")]
"""Synsets of the validation images in order."""
TRAIN = {f"{image.synset}/{image.name}": image.data for image in of("train")}
VAL = {image.name: image.data for image in of("test")}
TRUTH = dict(zip(VAL, VALIDATION, strict=True))
IMAGES = {(image.split, image.label, image.data) for image in examples()}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        miniature.write(root / name, data)
    return root


def tar(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    return miniature.tar(files.items(), form)


def devkit(table: bytes | None = None, truth: Iterable[str] = VALIDATION) -> dict[str, bytes]:
    numbers = {synset: number for number, synset in IDS.items()}
    lines = "".join(f"{numbers[synset]}\n" for synset in truth)
    return {
        "ILSVRC2012_devkit_t12/data/meta.mat": meta(IDS) if table is None else table,
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": lines.encode(),
        "ILSVRC2012_devkit_t12/readme.txt": b"ILSVRC2012",
    }


KIT = {"ILSVRC2012_devkit_t12.tar.gz": gzip.compress(tar(devkit()))}
SOLUTION = "ImageId,PredictionString\n" + "".join(
    f"{name[:-5]},{synset} 85 1 499 272 {synset} 1 2 3 4 \n" for name, synset in reversed(TRUTH.items())
)


def csv(text: str) -> dict[str, bytes]:
    return {"LOC_val_solution.csv": text.encode()}


CSV = csv(SOLUTION)
FOLDERS = {f"train/{name}": data for name, data in TRAIN.items()}
VAL_FOLDERS = {f"val/{TRUTH[name]}/{name}": data for name, data in VAL.items()}
FLAT = {f"val/{name}": data for name, data in VAL.items()}
CLASS_TARS = {
    f"{synset}.tar": tar({name[10:]: data for name, data in TRAIN.items() if name.startswith(synset)})
    for synset in CLASSES
}
ARCHIVES = {"ILSVRC2012_img_train.tar": tar(CLASS_TARS), "ILSVRC2012_img_val.tar": tar(VAL)}


def halves(files: dict[str, bytes]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    items = list(files.items())
    return dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])


def shards(split: str, files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> dict[str, bytes]:
    separator = "_" if "_" in split else "-"
    return {f"{split}{separator}{number:05}.tar": tar(part, form) for number, part in enumerate(halves(files))}


def with_labels(files: dict[str, bytes], labels: Iterable[int]) -> dict[str, bytes]:
    """Return the members of webdataset's shards."""
    members = {}
    for (name, data), label in zip(files.items(), labels, strict=True):
        key = name.rpartition("/")[2].removesuffix(".JPEG")
        members |= {f"{key}.cls": str(label).encode(), f"{key}.jpg": data, f"{key}.json": b"{}"}
    return members


TRAIN_LABELS = [CLASSES.index(name[:9]) for name in TRAIN]
VAL_LABELS = [CLASSES.index(synset) for synset in VALIDATION]


def below(directory: str, files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{directory}/{name}": data for name, data in files.items()}


def named(files: dict[str, bytes], synsets: Iterable[str]) -> dict[str, bytes]:
    """Return the files with their synsets at the end of their names, as Hugging Face has them, without directories."""
    names = (name.rpartition("/")[2].removesuffix(".JPEG") for name in files)
    return {f"{name}_{synset}.JPEG": data for name, synset, data in zip(names, synsets, files.values(), strict=True)}


HUB_TRAIN, HUB_VAL = named(TRAIN, (name[:9] for name in TRAIN)), named(VAL, VALIDATION)
KAGGLE = CSV | below("ILSVRC/Data/CLS-LOC", FOLDERS | FLAT | {"test/ILSVRC2012_test_00000001.JPEG": b"no label"})
LAYOUTS = {
    "folders": FOLDERS | VAL_FOLDERS,
    "folder validation": FOLDERS | {f"validation/{name[4:]}": data for name, data in VAL_FOLDERS.items()},
    "flat images, csv": FOLDERS | FLAT | CSV,
    "flat images, devkit": FOLDERS | FLAT | devkit(),
    "flat images, devkit archive": FOLDERS | FLAT | KIT,
    "flat and folders": FOLDERS | CSV | dict([*list(FLAT.items())[:3], *list(VAL_FOLDERS.items())[3:]]),
    "flat images, csv without header": FOLDERS | FLAT | csv("\ufeff" + SOLUTION.partition("\n")[2]),
    "flat images, csv with suffixes": FOLDERS | FLAT | csv(SOLUTION.replace(",n", ".JPEG,n")),
    "flat images, csv with quotes": FOLDERS | FLAT | csv(re.sub("([^,\n]+)", r'"\1"', f"\n{SOLUTION}\n")),
    "flat images, csv of Windows": FOLDERS | FLAT | csv("\ufeff" + SOLUTION.replace("\n", "\r\n")),
    "Hugging Face's archives": shards("train_images", HUB_TRAIN) | {"val_images.tar": tar(below(".", HUB_VAL))},
    "Hugging Face's archives, unpacked": below("train", HUB_TRAIN) | below("val", HUB_VAL),
    "unpacked beside their archives": FOLDERS | VAL_FOLDERS | {"train_images_0.tar": b"", "val_images.tar.gz": b""},
    "flat images of training": {f"train/{name[10:]}": data for name, data in TRAIN.items()} | VAL_FOLDERS,
    "Kaggle": KAGGLE,
    "list above the folders": below("imagenet", FOLDERS | FLAT) | CSV,
    "parent of Kaggle": below("imagenet", KAGGLE) | {"other/train/a/b.txt": b""},
    "archives, devkit": ARCHIVES | KIT,
    "archives, csv": ARCHIVES | CSV,
    "archives of classes": below("train", CLASS_TARS) | VAL_FOLDERS,
    "folders and an archive": FOLDERS | {"ILSVRC2012_img_val.tar": tar(VAL, tarfile.GNU_FORMAT)} | CSV,
    "shards": shards("train", TRAIN) | shards("val", {name[4:]: data for name, data in VAL_FOLDERS.items()}),
    "shards in directories": shards("train", {f"./train/{name}": data for name, data in TRAIN.items()})
    | shards("validation", VAL_FOLDERS, tarfile.USTAR_FORMAT),
    "webdataset": shards("imagenet1k-train", with_labels(TRAIN, TRAIN_LABELS))
    | shards("imagenet1k-validation", with_labels(VAL, VAL_LABELS)),
}


def read(root: Path, layout: Layout) -> list[tuple[str, int, bytes]]:
    """Return split, label and bytes of all images, read where the layout says that they are."""
    found = []
    for image in layout.images():
        with (root / image.path).open("rb") as stream:
            stream.seek(image.offset)
            found.append((image.split, image.label, stream.read(image.length)))
    return found


def error_message(root: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        list(find_layout(root, CLASSES).images())
    return str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_same_images(name: str, tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS[name])
    layout = find_layout(tmp_path, CLASSES)
    found = read(tmp_path, layout)
    assert set(found) == IMAGES
    assert len(found) == len(IMAGES)
    assert (layout.foreign, layout.missing) == ([], [])


@pytest.mark.parametrize("directory", ["ILSVRC", "ILSVRC/Data/CLS-LOC"])
def test_labels_are_found_above_the_directory(directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, KAGGLE)
    if directory == "ILSVRC":
        (tmp_path / "LOC_val_solution.csv").rename(tmp_path / "ILSVRC" / "LOC_val_solution.csv")
    monkeypatch.chdir(tmp_path / directory)
    assert set(read(Path(), find_layout(Path(), CLASSES))) == IMAGES


def test_images_come_in_order_of_their_containers(tmp_path: Path) -> None:
    write(tmp_path, FOLDERS | VAL_FOLDERS)
    layout = find_layout(tmp_path, CLASSES)
    paths = [image.path for image in layout.images()]
    assert paths == [*sorted(FOLDERS), *sorted(VAL_FOLDERS)]
    assert layout.title == "class folders"
    assert {image.name for image in layout.images()} == {path.rpartition("/")[2] for path in paths}


def element(kind: int, content: bytes) -> bytes:
    """Return an element of a MATLAB file."""
    if len(content) <= 4:
        return struct.pack("<HH4s", kind, len(content), content)
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind: int, *content: bytes, name: bytes = b"", size: int = 1) -> bytes:
    flags, shape = element(6, struct.pack("<II", kind, 0)), element(5, struct.pack("<ii", size, 1))
    return element(14, flags + shape + element(1, name) + b"".join(content))


MATLAB = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def test_devkit_is_read_as_matlab_writes_it(tmp_path: Path) -> None:
    fields = b"WNID".ljust(32, b"\0") + b"ILSVRC2012_ID".ljust(32, b"\0")
    content = [element(5, struct.pack("<i", 32)), element(1, fields)]
    for number, synset in [*IDS.items(), (1001, "n00001740")]:
        content.append(matrix(4, element(4, synset.encode("utf-16-le")), size=9))
        content.append(matrix(6, element(4, struct.pack("<H", number))))
    table = zlib.compress(matrix(2, *content, name=b"synsets", size=len(IDS) + 1))
    write(tmp_path, FLAT | devkit(MATLAB + struct.pack("<II", 15, len(table)) + table))
    assert [image.label for image in find_layout(tmp_path, CLASSES).images()] == VAL_LABELS


@pytest.mark.parametrize("compress", [False, True])
def test_devkit_numbers_are_mapped_to_synsets(compress: bool, tmp_path: Path) -> None:
    ids = {number: CLASSES[number % 5] for number in (1, 2, 3, 4, 5)}
    truth = (1, 2, 3, 4, 5, 5, 4, 3, 2, 1)
    write(tmp_path, FLAT | devkit(meta(ids, compress=compress), truth=[IDS[number] for number in truth]))
    assert [image.label for image in find_layout(tmp_path, CLASSES).images()] == [number % 5 for number in truth]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (FOLDERS | ARCHIVES | CSV, ("train/", "ILSVRC2012_img_train.tar")),
        (FOLDERS | shards("train", TRAIN), ("train/", "train-*.tar")),
        (shards("train", TRAIN) | shards("imagenet-train", TRAIN), ("train-*.tar", "imagenet-train-*.tar")),
        (VAL_FOLDERS | {"validation/n01440764/a.JPEG": b""}, ("val/", "validation/")),
        (FOLDERS | KAGGLE, ("train/", "ILSVRC/Data/CLS-LOC/train/")),
        (below("a", FOLDERS) | below("b", shards("train", TRAIN)), ("a/train/", "b/train-*.tar")),
        (shards("train", TRAIN) | {"train-00000-of-00294.parquet": b""}, ("train-*.tar", "train-*.parquet")),
        ({"train_images_0.tar": b"", "train_images_1.tar.gz": b""}, ("train_images*.tar", "train_images*.tar.gz")),
    ],
)
def test_two_layouts_are_an_error_that_names_both(
    files: dict[str, bytes], named: tuple[str, str], tmp_path: Path
) -> None:
    write(tmp_path, files)
    message = error_message(tmp_path)
    assert all(name in message for name in named)


@pytest.mark.parametrize("files", [FOLDERS, below("train", CLASS_TARS), below("train", VAL)])
def test_error_for_one_of_the_sets_names_its_parent(files: dict[str, bytes], tmp_path: Path) -> None:
    write(tmp_path, files)
    assert f"train/ and val/, such as {tmp_path}." in error_message(tmp_path / "train")


@pytest.mark.parametrize("root", ["missing", "file"])
def test_root_that_is_no_directory_is_an_error(root: str, tmp_path: Path) -> None:
    write(tmp_path, {"file": b""})
    assert str(tmp_path / root) in error_message(tmp_path / root)


def changed_devkit(**changes: bytes) -> dict[str, bytes]:
    """Return a development kit with other contents of files, which are given by the stems of their names."""
    return {name: changes.get(Path(name).stem, data) for name, data in devkit().items()}


def truncated_in_an_archive() -> dict[str, bytes]:
    inner = CLASS_TARS["n01440764.tar"].rstrip(b"\0")
    return {"ILSVRC2012_img_train.tar": tar(CLASS_TARS | {"n01440764.tar": inner + bytes(-len(inner) % 512)})}


def labelled(label: bytes) -> dict[str, bytes]:
    return {"train-0.tar": tar({"n01440764_10026.jpg": b"", "n01440764_10026.cls": label})}


def misplaced(name: str) -> dict[str, bytes]:
    """Return images of which one is in the directory of another synset, as after directories were renamed."""
    return {f"train/{CLASSES[0]}/{CLASSES[0]}_7.JPEG": b"", name: b""}


def packed(*names: str) -> dict[str, bytes]:
    return {f"{name}.parquet": b"PAR1" for name in names}


COMPRESSED = (
    "ILSVRC2012_img_train.tar.gz",
    "train-00000.tar",
    *(f"{s}*.tar.gz" for s in ("train-", "train_images", "val_images")),
)
PARQUET = ("train-00000-of-00294-0123456789abcdef", "val-00000-of-00014", "test-00000-of-00028")
OTHERS_NAMES = ("n02105855_7.JPEG", "ILSVRC2012_val_00000007_n02105855.JPEG")
KNOWN = "line {} names no known class"
ERRORS: list[tuple[dict[str, bytes], tuple[str, ...]]] = [
    # without labels: the files to add
    *((FOLDERS | one, ("LOC_val_solution.csv", "ILSVRC2012_devkit_t12.tar.gz")) for one in (FLAT, halves(ARCHIVES)[1])),
    # damaged or contradictory archives and shards
    (truncated_in_an_archive(), ("ILSVRC2012_img_train.tar: n01440764.tar is truncated",)),
    (
        FOLDERS | {"train/n02105855.tar": CLASS_TARS["n02105855.tar"]},
        ("n02105855 both as a directory and as an archive",),
    ),
    ({"train-0.tar": tar({"a.jpg": b"", "a.json": b"", "b.cls": b"1"})}, ("train-0.tar: a: the image has no label",)),
    ({"train-0.tar": tar({"a.1.jpg": b"", "a.1.cls": b"1"})}, ("train-0.tar: a: the image has no label",)),
    (labelled(b"5"), ("train-0.tar: n01440764_10026.", "from 0 to 4, not b'5'")),
    *((labelled(label), (f"not {label!r}",)) for label in (b"-1", b"x", b"")),
    (labelled(b"1"), ("train-0.tar: n01440764_10026.", "another synset")),
    *(
        (
            misplaced(f"{folder}/{CLASSES[0]}/{name}"),
            (f"{name} names another synset than that of its label, {CLASSES[0]}.",),
        )
        for folder in ("train", "val")
        for name in OTHERS_NAMES
    ),
    # formats from which images cannot be read in place
    *(
        (packed(*(f"{below}{name}" for name in PARQUET)), ("`paperbench data pack imagenet ",))
        for below in ("", "data/")
    ),
    *(
        ({name.replace("*", "_0" if "images" in name else "00000"): gzip.compress(tar(TRAIN), 0)}, (name, "compress"))
        for name in COMPRESSED
    ),
    # directories without images
    (
        {f"train/{name}/a.JPEG": b"" for name in ("horse", "bird", "cat", "dog")},
        ("such as n01440764, but bird, cat, dog.",),
    ),
    ({"n01440764/a.JPEG": b""}, ("in train/ and val/.",)),
    *((files, ("train/<synset>/",)) for files in ({}, {"train/a.JPEG": b""}, {"test/a.JPEG": b""})),
    # damaged lists of labels
    (FLAT | csv("h\nILSVRC2012_val_00000001,n99999999 1 2 3 4\n"), (KNOWN.format(2),)),
    (FLAT | csv("h\nILSVRC2012_val_00000001\n"), (KNOWN.format(2),)),
    (FLAT | csv("ILSVRC2012_val_00000001\n"), (KNOWN.format(1),)),
    (FLAT | csv("ILSVRC2012_val_00000001.JPEG,n99999999 1 2 3 4\n"), (KNOWN.format(1),)),
    *(
        (FLAT | kit, ("ILSVRC2012_devkit_t12", message))
        for kit, message in (
            (
                changed_devkit(ILSVRC2012_validation_ground_truth=b"1\n6\n"),
                "line 2: b'6' is the number of no known class",
            ),
            (changed_devkit(ILSVRC2012_validation_ground_truth=b"1001\n"), "line 1: b'1001' is the number of no known"),
            (changed_devkit(meta=b"MATLAB 7.3"), "not a MATLAB file of version 5"),
            (changed_devkit(meta=meta(IDS, compress=False)[:-200]), "truncated"),
            (changed_devkit(meta=meta(IDS)[:-20]), "truncated"),
            (dict(list(devkit().items())[1:]), "meta.mat is missing"),
            ({"ILSVRC2012_devkit_t12.tar.gz": next(iter(KIT.values()))[:-30]}, "truncated"),
            ({"ILSVRC2012_devkit_t12.tar.gz": b"<html>"}, "incorrect header check"),
            ({"ILSVRC2012_devkit_t12.tar.gz": gzip.compress(bytes(2**26 + 1), 1)}, "larger than the original"),
        )
    ),
]


@pytest.mark.parametrize(("files", "parts"), ERRORS, ids=[" ".join(parts)[:60] for _, parts in ERRORS])
def test_unusable_directory_is_an_error(files: dict[str, bytes], parts: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, files)
    message = error_message(tmp_path)
    assert all(part in message for part in parts)


def test_foreign_files_are_listed_and_hidden_ones_ignored(tmp_path: Path) -> None:
    foreign = {
        *("train/n99999999", "train/n01440764/Thumbs.db", "train/n01440764/notes.txt", "train/n01440764/sub"),
        *("train/n01440764/folder.JPEG", f"train/{next(iter(VAL))}", "val/unlisted.JPEG"),
    }
    write(tmp_path, FOLDERS | FLAT | CSV | {name: b"" for name in foreign if "sub" not in name and "." in name[-5:]})
    (tmp_path / "train/n01440764/folder.JPEG").unlink()
    write(tmp_path, {f"train/n01440764/{name}/a.JPEG": b"" for name in ("sub", "folder.JPEG")})
    write(tmp_path, {"train/n99999999/a.JPEG": b"", "meta.bin": b"", "dataset.yaml": b"", "ILSVRC/ImageSets/a": b""})
    write(tmp_path, {"train/.DS_Store": b"", "train/n01440764/._a.JPEG": b"", "val/.a.JPEG": b""})
    layout = find_layout(tmp_path, CLASSES)
    assert set(read(tmp_path, layout)) == IMAGES
    assert set(layout.foreign) == foreign


def test_foreign_members_of_tar_files_are_listed(tmp_path: Path) -> None:
    members = TRAIN | {"n01440764/Thumbs.db": b"", "n01440764/._a.JPEG": b"", "n99999999/a.JPEG": b"", "a.bin": b""}
    write(tmp_path, {"train-0.tar": tar(members)})
    write(tmp_path, {"ILSVRC2012_img_val.tar": tar(VAL | {"unlisted.JPEG": b""})} | CSV)
    layout = find_layout(tmp_path, CLASSES)
    assert set(read(tmp_path, layout)) == IMAGES
    train = {f"train-0.tar: {name}" for name in ("n01440764/Thumbs.db", "n99999999/a.JPEG", "a.bin")}
    assert set(layout.foreign) == {*train, "ILSVRC2012_img_val.tar: unlisted.JPEG"}


def test_suffix_decides_what_is_an_image(tmp_path: Path) -> None:
    suffixes = (".JPEG", ".jpeg", ".jpg", ".JPG", ".png", ".PNG")
    write(tmp_path, {f"train/n01440764/{number}{suffix}": b"" for number, suffix in enumerate((*suffixes, ".gif"))})
    layout = find_layout(tmp_path, CLASSES)
    assert [image.name for image in layout.images()] == [f"{n}{suffix}" for n, suffix in enumerate(suffixes)]
    assert layout.foreign == ["train/n01440764/6.gif"]


def test_classes_may_have_any_names(tmp_path: Path) -> None:
    write(tmp_path, {"train/tram/a.png": b"a", "train/china/b.png": b"b", "val/china/c.png": b"c"})
    layout = find_layout(tmp_path, ("china", "flower", "tram"))
    assert read(tmp_path, layout) == [("train", 0, b"b"), ("train", 2, b"a"), ("test", 0, b"c")]


LISTS = {
    "train_cls.txt": "".join(f"{name[:-5]} {number}\n" for number, name in enumerate(TRAIN, 1)).encode(),
    "val.txt": "".join(f"{name[:-5]} {number}\n" for number, name in enumerate(VAL, 1)).encode(),
}


@pytest.mark.parametrize(
    "lists",
    [
        CSV | below("ILSVRC/ImageSets/CLS-LOC", LISTS),
        KIT | below("ILSVRC/ImageSets/CLS-LOC", {"train_cls.txt": LISTS["train_cls.txt"]}),
        CSV | {"LOC_train_solution.csv": "".join(f"{name[10:-5]},{name[:9]} 1 2 3 4 \n" for name in TRAIN).encode()},
    ],
)
def test_listed_images_that_are_absent_are_missing(lists: dict[str, bytes], tmp_path: Path) -> None:
    files = {name: data for name, data in KAGGLE.items() if name not in CSV} | lists
    del files["ILSVRC/Data/CLS-LOC/train/n02105855/n02105855_10.JPEG"]
    del files["ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000003.JPEG"]
    write(tmp_path, files)
    link = "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000003.JPEG"
    (tmp_path / link).symlink_to("gone")
    layout = find_layout(tmp_path, CLASSES)
    for _ in range(2):
        assert len(read(tmp_path, layout)) == len(IMAGES) - 2
        assert layout.missing == ["n02105855_10", link]
    (tmp_path / link).unlink()
    assert len(read(tmp_path, layout)) == len(IMAGES) - 2
    assert layout.missing == ["n02105855_10", "ILSVRC2012_val_00000003"]


@pytest.mark.parametrize(("kept", "missing"), [(248, 2), (225, 25), (224, 0)])
def test_gaps_in_numbers_of_a_full_validation_set_are_missing(kept: int, missing: int, tmp_path: Path) -> None:
    names = [f"ILSVRC2012_val_{number:08}" for number in range(1, 251)]  # five classes
    write(tmp_path, {"val-0.tar": tar({f"n01440764/{name}_n01440764.JPEG": b"" for name in names[-kept:]})})
    layout = find_layout(tmp_path, CLASSES)
    assert len(list(layout.images())) == kept
    assert layout.missing == names[:missing]


def test_links_are_followed_and_dangling_ones_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", FOLDERS | VAL_FOLDERS)
    root = tmp_path / "root"
    (root / "train").mkdir(parents=True)
    (root / "val").symlink_to(tmp_path / "elsewhere" / "val")
    for synset in CLASSES[:-1]:
        (root / "train" / synset).symlink_to(tmp_path / "elsewhere" / "train" / synset)
    (root / "train" / CLASSES[-1]).mkdir()
    for file in (tmp_path / "elsewhere" / "train" / CLASSES[-1]).iterdir():
        (root / "train" / CLASSES[-1] / file.name).symlink_to(file)
    (root / "train" / CLASSES[-1] / "gone.JPEG").symlink_to(tmp_path / "gone")
    (root / "train" / CLASSES[-1] / "itself.JPEG").symlink_to("itself.JPEG")
    (root / "train" / CLASSES[-1] / "loop").symlink_to(root)
    layout = find_layout(root, CLASSES)
    assert set(read(root, layout)) == IMAGES
    assert layout.missing == [f"train/{CLASSES[-1]}/gone.JPEG", f"train/{CLASSES[-1]}/itself.JPEG"]
    assert layout.foreign == [f"train/{CLASSES[-1]}/loop"]


def test_shard_that_is_a_dangling_link_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, shards("train", TRAIN))
    (tmp_path / "train-00002.tar").symlink_to("gone")
    assert "train-00002.tar cannot be read" in error_message(tmp_path)


def test_devkit_of_many_members_is_read_quickly(tmp_path: Path) -> None:
    many = tar({"empty": b""}, tarfile.USTAR_FORMAT)[:512] * 20_000
    write(tmp_path, FLAT | {"ILSVRC2012_devkit_t12.tar.gz": gzip.compress(many + tar(devkit()), 1)})
    with limit_seconds():
        assert len(list(find_layout(tmp_path, CLASSES).images())) == len(FLAT)
