from __future__ import annotations

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

from paperbench.errors import PaperbenchError
from paperbench.training import engine
from paperbench.training.engine import COMPILE_MIN_ITERATIONS, available_engines, choose_engine

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_no_triton", lambda: None)


def test_a_cpu_has_no_graphs_and_trains_eagerly_however_long() -> None:
    assert available_engines(CPU)["eager"] is None
    assert "NVIDIA GPU" in (available_engines(CPU)["graph"] or "")
    assert choose_engine("auto", CPU, 64_000).name == "eager"


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("iterations", "name"), [(80, "graph"), (COMPILE_MIN_ITERATIONS - 1, "graph"), (COMPILE_MIN_ITERATIONS, "compile")]
)
def test_a_gpu_compiles_where_it_pays(iterations: int, name: str) -> None:
    assert choose_engine("auto", CUDA, iterations).name == name


def test_a_gpu_without_triton_replays_graphs_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_no_triton", lambda: "Triton is not there")
    chosen = choose_engine("auto", CUDA, 64_000)
    assert (chosen.name, chosen.reason) == ("graph", "nothing can be compiled here: Triton is not there")
    with pytest.raises(PaperbenchError, match=r"Engine compile: Triton is not there. Use `--engine auto`"):
        choose_engine("compile", CUDA, 64_000)


@pytest.mark.usefixtures("triton")
def test_a_run_stays_with_its_engine_where_that_can_be() -> None:
    assert choose_engine("auto", CUDA, 64_000, earlier="eager").name == "eager"
    assert choose_engine("auto", CPU, 64_000, earlier="graph").name == "eager"
    assert choose_engine("graph", CUDA, 64_000, earlier="eager").name == "graph"
    assert choose_engine("auto", CUDA, 64_000, earlier="an engine of a later version").name == "compile"


def test_wrong_engines_are_refused() -> None:
    with pytest.raises(PaperbenchError, match="Known: auto, compile, eager, graph"):
        choose_engine("jit", CPU, 80)
    with pytest.raises(PaperbenchError, match=r"Engine graph: CUDA graphs need an NVIDIA GPU. Use `--engine auto`"):
        choose_engine("graph", CPU, 80)


def test_triton_without_a_c_compiler_is_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")

    class Driver:
        def get_current_target(self) -> None:
            raise RuntimeError("Failed to find C compiler.\nSet CC.")

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr(triton.runtime, "driver", type("Config", (), {"active": Driver()}))
    assert available_engines(CUDA)["compile"] == "Triton does not work here (Failed to find C compiler.)"
    assert choose_engine("auto", CUDA, 64_000).name == "graph"


@pytest.mark.parametrize("error", [InvalidCxxCompiler(), PermissionError(13, "Permission denied")])
def test_without_a_cpp_compiler_a_cpu_cannot_compile(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    import torch._inductor.cpp_builder as builder

    def none_found() -> str:
        raise error

    monkeypatch.setattr(builder, "get_cpp_compiler", none_found)
    assert "C++ compiler" in (available_engines(CPU)["compile"] or "")
