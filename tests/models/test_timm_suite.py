"""timm's own tests of its models, pointed at our names. They come from timm's source distribution when this runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import timm

from paperbench.catalogue import NETS, tags
from tests.helpers import ROOT

PLUGIN = Path(__file__).parent / "timm_suite"
EVERY_NAME = {
    "test_model_forward",
    "test_model_backward",
    "test_model_forward_features",
    "test_model_forward_intermediates",
    "test_model_forward_intermediates_features",
    "test_prune_intermediate_layers_contract",
    "test_model_forward_torchscript",
    "test_model_forward_fx",
    "test_model_forward_fx_torchscript",
    "test_model_backward_fx",
}
EVERY_TAG = {"test_model_default_cfgs"}
KINDS = 22
"""Nets that differ in more than depth."""


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> Path:
    """timm's source distribution of the installed version, unpacked in pytest's cache."""
    version = timm.__version__
    folder = request.config.cache.mkdir(f"timm-{version}")
    source = folder / f"timm-{version}"
    if not (source / "tests" / "test_models.py").exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "timm"]
        fetched = subprocess.run(
            [*pip, "--dest", str(folder), f"timm=={version}"], capture_output=True, text=True, check=False
        )
        if fetched.returncode:
            message = f"timm's source distribution cannot be fetched: {fetched.stderr.strip()[-300:]}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        with tarfile.open(folder / f"timm-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return source


def test_timms_own_tests_pass_on_all_our_nets(suite: Path, tmp_path: Path, full: bool) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "only_our_nets", "-p", "no:cacheprovider", "-q", "-W", "ignore"]
    command += [f"--junitxml={report}", *([] if full else ["--shallow"]), "tests/test_models.py"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PLUGIN}", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        assert len(case) == 0, f"{case.get('name')} was not run: {[child.get('message') for child in case]}"
        passed[case.get("name", "").partition("[")[0]] += 1
    assert passed == {
        **dict.fromkeys(EVERY_NAME, len(NETS) if full else KINDS),
        **dict.fromkeys(EVERY_TAG, sum(len(tags(name)) for name in NETS)),
    }
