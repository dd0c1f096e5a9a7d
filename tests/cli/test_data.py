from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Run
from tests.data.imagenet.miniature import SYNSETS, write_folders

INDEX = ("data", "index", "imagenet", "images")


def test_data_index_writes_what_data_check_reads(run: Run) -> None:
    write_folders(Path("images"))
    code, out, _ = run(*INDEX, "--subset", "--threads", 1)
    assert code == 0
    assert "ImageNet (subset: 20 + 10 images)\n" in out
    assert "  origin       class folders; not compared with the original files\n" in out
    assert "  images       20 to train on, 10 to test, 5 of 1,000 classes\n" in out
    code, checked, err = run("data", "check", "imagenet")
    assert (code, err) == (0, "")
    assert checked == f"{out}  directory    {Path.cwd() / 'images'}\n"
    (lost,) = (path for path in Path("images/train").rglob("*_10.JPEG") if SYNSETS[0] in path.name)
    lost.unlink()
    code, _, err = run("data", "check", "imagenet")
    assert code == 1
    assert err.startswith(f"paperbench: missing or changed files (1): train/{SYNSETS[0]}/{lost.name}: No such file")


def test_data_index_says_what_is_missing_and_exits_with_1(run: Run) -> None:
    write_folders(Path("images"))
    shutil.rmtree(f"images/train/{SYNSETS[0]}")
    code, out, err = run(*INDEX, "--data", "elsewhere")
    assert (code, out) == (1, "")
    assert "it has 16 + 10 images" in err
    assert f"classes without training images (996): {SYNSETS[0]}, n01443537," in err
    assert "and 985 others\n" in err
    assert run("data", "check", "imagenet", "--data", "elsewhere")[0] == 2


def test_data_index_without_archives_is_an_error(run: Run) -> None:
    write_folders(Path("images"))
    code, _, err = run(*INDEX, "--archives", "images")
    assert code == 2
    assert "images lacks ILSVRC2012_img_val.tar" in err
