from __future__ import annotations

import getpass
import json
import os
import socket
from pathlib import Path

import pytest
import torch

from paperbench.bench.machine import clocks, facts
from paperbench.runs.environment import environment_facts

CPU = torch.device("cpu")


def test_facts_are_plain_and_name_neither_host_nor_user_nor_path() -> None:
    found = facts(CPU)
    text = json.dumps(found)
    assert json.loads(text) == found
    for secret in (socket.gethostname(), str(Path.home()), str(Path.cwd())):
        assert secret not in text
    assert f'"{getpass.getuser()}"' not in text


def test_facts_are_those_of_records_and_of_the_machine() -> None:
    found = facts(CPU)
    assert vars(environment_facts(CPU)).items() <= found.items()
    assert found["threads"] == torch.get_num_threads()
    assert 1 <= found["cpus"] <= (os.cpu_count() or 1)
    assert found["memory_bytes"] > 10**8
    assert clocks(CPU) is None


def test_how_waiting_threads_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "123")
    assert facts(CPU)["openmp"] == {"GOMP_SPINCOUNT": "123"}
