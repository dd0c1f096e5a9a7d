from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch

from paperbench.bench.figures import Flags, json_text
from paperbench.bench.machine import current_flags, machine_facts, nvidia_smi, restore_flags, set_flags
from paperbench.bench.plain_loop import plain_flags
from paperbench.runs.environment import environment_facts

CPU = torch.device("cpu")


def test_facts_are_those_of_the_machine_and_name_neither_host_nor_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "123")
    found = machine_facts(CPU)
    assert found.environment == environment_facts(CPU)
    assert found.cpus is not None
    assert 1 <= found.cpus <= (os.cpu_count() or 1)
    assert (found.memory_bytes or 0) > 10**8
    assert found.openmp == {"GOMP_SPINCOUNT": "123"}
    assert nvidia_smi(CPU, "clocks.sm") is None
    for secret in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert secret not in json_text(found)


def change_to(other: Flags) -> None:
    with restore_flags():
        set_flags(other)
        assert current_flags() == other
        raise ValueError("after the switches")


@pytest.mark.parametrize(
    "other", [plain_flags("tf32"), plain_flags("fp32"), Flags("none", "none", benchmark=False, deterministic=True)]
)
def test_switches_are_restored_also_after_an_error(other: Flags) -> None:
    before = current_flags()
    with pytest.raises(ValueError, match="after the switches"):
        change_to(other)
    assert current_flags() == before
