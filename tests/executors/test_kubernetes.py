"""The Kubernetes manifest of the documentation, whose form kubernetes-validate has checked."""

from __future__ import annotations

import yaml

from paperbench.cli.main import build_parser
from paperbench.launch import TIME_WAS_UP
from tests.helpers import ROOT


def test_manifest_fits_the_command_line() -> None:
    text = (ROOT / "docs" / "kubernetes.yaml").read_text()
    volume, *jobs = yaml.safe_load_all(text)
    places = []
    for job in jobs:
        assert f"job/{job['metadata']['name']}" in text or f"patch job {job['metadata']['name']} " in text
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        program, *arguments = container["command"]
        assert program == "paperbench"
        (mount,) = container["volumeMounts"]
        args = build_parser().parse_args(arguments)
        places += [args.data, *([args.results] if args.command == "run" else [])]
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert [place.relative_to(mount["mountPath"]).as_posix() for place in places] == ["data", "data", "results"]
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"], "leases are files"
    assert spec["suspend"], "its pods would find no data"
    assert spec["completions"] == spec["parallelism"], "otherwise no pod is replaced once one has nothing left to do"
    codes = [rule["onExitCodes"]["values"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert codes == [[TIME_WAS_UP]]
    assert pod["restartPolicy"] == "Never", "which podFailurePolicy needs"
