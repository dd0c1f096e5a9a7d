"""What launchers of several processes say in the environment."""

from __future__ import annotations

import pytest

from paperbench.errors import PaperbenchError
from paperbench.launch import Launch, first_host

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[03-05,9],login",
}
ELASTIC = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "0"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, Launch(5, 8, 1, "a", 29_500)),
        (TORCHRUN | ELASTIC, Launch(5, 8, 1, "a", 29_500)),
        (SRUN, Launch(3, 4, 1, "gpu03", 20_219, "7.2")),
        (SRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "30000"}, Launch(3, 4, 1, "a", 30_000, "7.2")),
        (SRUN | TORCHRUN, Launch(5, 8, 1, "a", 29_500)),  # torchrun, started on each machine by srun
        ({}, None),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, None),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (BATCH, None),  # in sbatch's script without srun
        ({"WORLD_SIZE": "4"}, None),  # left over
    ],
)
def test_launch_is_read_from_the_environment(environment: dict[str, str], expected: Launch | None) -> None:
    assert Launch.of(environment) == expected


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
def test_incomplete_environment_is_an_error(environment: dict[str, str]) -> None:
    counts = {"WORLD_SIZE", "RANK", "SLURM_STEP_NUM_TASKS"}  # without one, the process is alone
    for missing in environment.keys() - counts:
        with pytest.raises(PaperbenchError, match=rf"incomplete \('{missing}'\).* unset WORLD_SIZE"):
            Launch.of({name: value for name, value in environment.items() if name != missing})
    for name in counts & environment.keys():
        with pytest.raises(PaperbenchError, match=r"incomplete .*many"):
            Launch.of(environment | {name: "many"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("node-b,node-a", "node-b"),
        ("gpu[03-05,9],login", "gpu03"),
        ("gpu[7]-ib.example.org,x", "gpu7-ib.example.org"),
        ("login,gpu[1-2]", "login"),
        ("rack[2-3]node[001,005]", "rack2node001"),
    ],
)
def test_first_host_of_slurms_lists(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
