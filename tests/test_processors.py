from __future__ import annotations

import os
from pathlib import Path

import pytest

from paperbench.processors import processors, quota
from tests.data.imagenet.miniature import write

POD = "0::/kubepods/pod7"
V1 = "4:memory:/other\n3:cpuacct,cpu:/docker/7\n0::/y"


@pytest.mark.parametrize(
    ("cgroups", "files", "expected"),
    [
        (POD, {"cpu.max": "150000 100000"}, 2),
        (POD, {"kubepods/pod7/cpu.max": "5000 100000", "kubepods/cpu.max": "max 100000"}, 1),
        (POD, {"kubepods/pod7/cpu.max": "max 100000", "kubepods/cpu.max": "4 1"}, 4),
        (POD, {"kubepods/pod7/cpu.max": "3 1", "kubepods/cpu.max": "4 1", "kubepods/pod8/cpu.max": "1 1"}, 3),
        ("0::/../..", {"cpu.max": "3 1"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000", "other/cpu.max": "1 1"}, None),
        (V1, {"cpu/docker/7/cpu.cfs_quota_us": "250000\n", "cpu/docker/7/cpu.cfs_period_us": "100000\n"}, 3),
        ("", {}, None),
    ],
)
def test_quota_is_the_smallest_on_the_way_up_rounded_up(
    cgroups: str, files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    for name, text in {"own": cgroups, **files}.items():
        write(tmp_path / name, text.encode())
    assert quota(tmp_path / "own", tmp_path) == expected
    assert quota(tmp_path / "nowhere", tmp_path) is None


def test_processors_are_those_of_affinity_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    number = len(usable)
    write(tmp_path / "own", b"0::/")
    for limit, shared, expected in (
        ("max", "", number),
        (number + 1, "1", number),
        (max(1, number - 1), "1", max(1, number - 1)),
        ("max", str(number), 1),
        ("max", str(number + 1), 1),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", shared)
        write(tmp_path / "cpu.max", f"{limit} 1".encode())
        assert processors(tmp_path / "own", tmp_path) == expected, (limit, shared)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    try:
        os.sched_setaffinity(0, {min(usable)})
        assert processors(tmp_path / "own", tmp_path) == 1
    finally:
        os.sched_setaffinity(0, usable)
