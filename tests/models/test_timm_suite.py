"""timm's own model tests, run on our nets. They are downloaded with timm's source distribution."""

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
TESTS_PER_NET = {
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
TESTS_PER_TAG = {"test_model_default_cfgs"}
DISTINCT_NETS = 22
"""Number of nets that differ in more than depth."""


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> Path:
    """The source distribution of the installed timm, unpacked in pytest's cache."""
    version = timm.__version__
    directory = request.config.cache.mkdir(f"timm-{version}")
    source = directory / f"timm-{version}"
    if not (source / "tests" / "test_models.py").exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "timm"]
        download = subprocess.run(
            [*pip, "--dest", str(directory), f"timm=={version}"], capture_output=True, text=True, check=False
        )
        if download.returncode:
            message = f"Cannot download timm's source distribution: {download.stderr.strip()[-300:]}"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)
        with tarfile.open(directory / f"timm-{version}.tar.gz") as archive:
            archive.extractall(directory, filter="data")
    return source


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--shallow"], marks=pytest.mark.full),
        pytest.param(["--shallow", "--checkpointed"], marks=pytest.mark.full),
        pytest.param([], marks=pytest.mark.stress),
    ],
)
def test_timms_tests_pass_on_our_nets(suite: Path, tmp_path: Path, options: list[str]) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "only_our_nets", "-p", "no:cacheprovider", "-q", "-W", "ignore"]
    command += [f"--junitxml={report}", *options, "tests/test_models.py"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PLUGIN}", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        assert len(case) == 0, f"{case.get('name')} did not run: {[child.get('message') for child in case]}"
        passed[case.get("name", "").partition("[")[0]] += 1
    assert passed == {
        **dict.fromkeys(TESTS_PER_NET, DISTINCT_NETS if options else len(NETS)),
        **dict.fromkeys(TESTS_PER_TAG, sum(len(tags(name)) for name in NETS)),
    }
