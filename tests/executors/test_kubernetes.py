"""The Kubernetes manifest of the documentation, whose form kubernetes-validate has checked."""

from __future__ import annotations

import yaml

from paperbench.cli.main import build_parser
from paperbench.launch import TIME_WAS_UP
from tests.helpers import ROOT


def test_manifest_fits_the_command_line() -> None:
    volume, job = yaml.safe_load_all((ROOT / "docs" / "kubernetes.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, *arguments = container["command"]
    assert program == "paperbench"
    (mount,) = container["volumeMounts"]
    args = build_parser().parse_args(arguments)
    assert {args.data.parent.as_posix(), args.results.parent.as_posix()} == {mount["mountPath"]}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"], "leases are files"
    assert spec["completions"] == spec["parallelism"], "otherwise no pod is replaced once one has nothing left to do"
    codes = [rule["onExitCodes"]["values"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert codes == [[TIME_WAS_UP]]
    assert pod["restartPolicy"] == "Never", "which podFailurePolicy needs"
