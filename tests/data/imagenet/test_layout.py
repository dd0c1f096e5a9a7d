from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from paperbench.data.imagenet.layout import Layout
from paperbench.data.imagenet.layout import find_layout as find
from paperbench.errors import PaperbenchError
from tests.data.imagenet import miniature
from tests.data.imagenet.miniature import SYNSETS as CLASSES
from tests.data.imagenet.miniature import examples, known_labels, of

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


FOLDERS = {f"train/{name}": data for name, data in TRAIN.items()}
VAL_FOLDERS = {f"val/{TRUTH[name]}/{name}": data for name, data in VAL.items()}
FLAT = {f"val/{name}": data for name, data in VAL.items()}
CLASS_TARS = {
    f"{synset}.tar": tar({name[10:]: data for name, data in TRAIN.items() if name.startswith(synset)})
    for synset in CLASSES
}
ARCHIVES = {"ILSVRC2012_img_train.tar": tar(CLASS_TARS), "ILSVRC2012_img_val.tar": tar(VAL)}


def find_layout(root: Path) -> Layout:
    return find(root, CLASSES, known_labels())


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
KIT = "ILSVRC2012_devkit_t12"
KAGGLE = below("ILSVRC/Data/CLS-LOC", FOLDERS | FLAT | {"test/ILSVRC2012_test_00000001.JPEG": b"no label"})
LAYOUTS = {
    "folders": FOLDERS | VAL_FOLDERS,
    "folder validation": FOLDERS | {f"validation/{name[4:]}": data for name, data in VAL_FOLDERS.items()},
    "flat images": FOLDERS | FLAT,
    "flat images beside labels": FOLDERS | FLAT | dict.fromkeys(("LOC_val_solution.csv", f"{KIT}.tar.gz"), b"unread"),
    "flat and folders": FOLDERS | dict([*list(FLAT.items())[:3], *list(VAL_FOLDERS.items())[3:]]),
    "Hugging Face's archives": shards("train_images", HUB_TRAIN) | {"val_images.tar": tar(below(".", HUB_VAL))},
    "Hugging Face's archives, unpacked": below("train", HUB_TRAIN) | below("val", HUB_VAL),
    "unpacked beside their archives": FOLDERS | VAL_FOLDERS | {"train_images_0.tar": b"", "val_images.tar.gz": b""},
    "flat images of training": {f"train/{name[10:]}": data for name, data in TRAIN.items()} | VAL_FOLDERS,
    "Kaggle": KAGGLE,
    "parent of Kaggle": below("imagenet", KAGGLE) | {"other/train/a/b.txt": b""},
    "archives": ARCHIVES,
    "archives of classes": below("train", CLASS_TARS) | VAL_FOLDERS,
    "folders and an archive": FOLDERS | {"ILSVRC2012_img_val.tar": tar(VAL, tarfile.GNU_FORMAT)},
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
        list(find_layout(root).images())
    return str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_the_same_images(name: str, tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS[name])
    layout = find_layout(tmp_path)
    found = read(tmp_path, layout)
    assert set(found) == IMAGES
    assert len(found) == len(IMAGES)
    assert (layout.foreign, layout.missing) == ([], [])


def test_images_come_in_order_of_their_containers(tmp_path: Path) -> None:
    write(tmp_path, FOLDERS | VAL_FOLDERS)
    layout = find_layout(tmp_path)
    paths = [image.path for image in layout.images()]
    assert paths == [*sorted(FOLDERS), *sorted(VAL_FOLDERS)]
    assert layout.title == "class folders"
    assert {image.name for image in layout.images()} == {path.rpartition("/")[2] for path in paths}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (FOLDERS | ARCHIVES, ("train/", "ILSVRC2012_img_train.tar")),
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
OTHERS_NUMBER = "ILSVRC2012_val_00000003"
ERRORS: list[tuple[dict[str, bytes], tuple[str, ...]]] = [
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
            (f"{name} is an image of another synset than that of its label, {CLASSES[0]}.",),
        )
        for folder in ("train", "val")
        for name in OTHERS_NAMES
    ),
    *(
        (files, (f"{OTHERS_NUMBER}.", f"is an image of another synset than that of its label, {CLASSES[0]}."))
        for files in (
            misplaced(f"val/{CLASSES[0]}/{OTHERS_NUMBER}.JPEG"),
            {"val-0.tar": tar({f"{CLASSES[0]}/{OTHERS_NUMBER}.JPEG": b""})},
            {"val-0.tar": tar(with_labels({f"{OTHERS_NUMBER}.JPEG": b""}, [0]))},
        )
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
    write(tmp_path, FOLDERS | FLAT | {name: b"" for name in foreign if "sub" not in name and "." in name[-5:]})
    (tmp_path / "train/n01440764/folder.JPEG").unlink()
    write(tmp_path, {f"train/n01440764/{name}/a.JPEG": b"" for name in ("sub", "folder.JPEG")})
    write(tmp_path, {"train/n99999999/a.JPEG": b"", "meta.bin": b"", "dataset.yaml": b"", "ILSVRC/ImageSets/a": b""})
    write(tmp_path, {"train/.DS_Store": b"", "train/n01440764/._a.JPEG": b"", "val/.a.JPEG": b""})
    layout = find_layout(tmp_path)
    assert set(read(tmp_path, layout)) == IMAGES
    assert set(layout.foreign) == foreign


def test_foreign_members_of_tar_files_are_listed(tmp_path: Path) -> None:
    members = TRAIN | {"n01440764/Thumbs.db": b"", "n01440764/._a.JPEG": b"", "n99999999/a.JPEG": b"", "a.bin": b""}
    write(tmp_path, {"train-0.tar": tar(members)})
    write(tmp_path, {"ILSVRC2012_img_val.tar": tar(VAL | {"unlisted.JPEG": b""})})
    layout = find_layout(tmp_path)
    assert set(read(tmp_path, layout)) == IMAGES
    train = {f"train-0.tar: {name}" for name in ("n01440764/Thumbs.db", "n99999999/a.JPEG", "a.bin")}
    assert set(layout.foreign) == {*train, "ILSVRC2012_img_val.tar: unlisted.JPEG"}


def test_suffix_decides_what_is_an_image(tmp_path: Path) -> None:
    suffixes = (".JPEG", ".jpeg", ".jpg", ".JPG", ".png", ".PNG")
    write(tmp_path, {f"train/n01440764/{number}{suffix}": b"" for number, suffix in enumerate((*suffixes, ".gif"))})
    layout = find_layout(tmp_path)
    assert [image.name for image in layout.images()] == [f"{n}{suffix}" for n, suffix in enumerate(suffixes)]
    assert layout.foreign == ["train/n01440764/6.gif"]


def test_classes_may_have_any_names(tmp_path: Path) -> None:
    write(tmp_path, {"train/tram/a.png": b"a", "train/china/b.png": b"b", "val/china/c.png": b"c"})
    layout = find(tmp_path, ("china", "flower", "tram"), {})
    assert read(tmp_path, layout) == [("train", 0, b"b"), ("train", 2, b"a"), ("test", 0, b"c")]


LIST = "".join(f"{name[:-5]} {number}\n" for number, name in enumerate(TRAIN, 1))
LISTS = {
    "ImageSets/CLS-LOC/train_cls.txt": LIST,
    "LOC_train_solution.csv": "".join(f"{name[10:-5]},{name[:9]} 1 2 3 4 \n" for name in TRAIN),
}


@pytest.mark.parametrize("directory", ["", "ILSVRC/"])
@pytest.mark.parametrize("name", LISTS)
def test_absent_training_images_that_a_list_has_are_missing(name: str, directory: str, tmp_path: Path) -> None:
    write(tmp_path, KAGGLE | {f"{directory}{name}": f"\ufeff{LISTS[name]}".encode()})
    (tmp_path / "ILSVRC/Data/CLS-LOC/train/n02105855/n02105855_10.JPEG").unlink()
    layout = find_layout(tmp_path / directory)
    for _ in range(2):
        assert len(read(tmp_path / directory, layout)) == len(IMAGES) - 1
        assert layout.missing == ["n02105855_10"]


@pytest.mark.parametrize("form", [FLAT, VAL_FOLDERS, {"ILSVRC2012_img_val.tar": b""}])
def test_absent_test_images_of_the_classes_that_are_there_are_missing(form: dict[str, bytes], tmp_path: Path) -> None:
    absent = [name for name in VAL if TRUTH[name] == CLASSES[0]] + ["ILSVRC2012_val_00000003.JPEG"]
    archive = tar({name: data for name, data in VAL.items() if name not in absent})
    write(tmp_path, {name: data or archive for name, data in form.items() if Path(name).name not in absent})
    layout = find_layout(tmp_path)
    list(layout.images())
    assert layout.missing == ["ILSVRC2012_val_00000003"]


def test_link_that_leads_nowhere_is_missing_once(tmp_path: Path) -> None:
    write(tmp_path, FLAT)
    link = tmp_path / "val/ILSVRC2012_val_00000003.JPEG"
    link.unlink()
    link.symlink_to("gone")
    layout = find_layout(tmp_path)
    list(layout.images())
    assert layout.missing == ["val/ILSVRC2012_val_00000003.JPEG"]


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
    layout = find_layout(root)
    assert set(read(root, layout)) == IMAGES
    assert layout.missing == [f"train/{CLASSES[-1]}/gone.JPEG", f"train/{CLASSES[-1]}/itself.JPEG"]
    assert layout.foreign == [f"train/{CLASSES[-1]}/loop"]


def test_shard_that_is_a_dangling_link_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, shards("train", TRAIN))
    (tmp_path / "train-00002.tar").symlink_to("gone")
    assert "train-00002.tar cannot be read" in error_message(tmp_path)
