"""What runs find on this machine: software, GPUs, data sets, and what each table would take.

It is meant to be published, so no host name, user name or path is in it.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from paperbench.catalogue import DATASETS, FAMILIES, Net
from paperbench.data.cifar_batches import DIRECTORIES
from paperbench.data.share import WHOLE
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError, format_bytes, listing, one_line, without_paths
from paperbench.processors import quota
from paperbench.runs.diagnosis import Choice, Diagnosis
from paperbench.runs.disk_space import free_bytes
from paperbench.runs.environment import code_facts, cudnn_version, environment_facts
from paperbench.runs.planning import needed_datasets
from paperbench.runs.record import Environment
from paperbench.specs.table import Table
from paperbench.training.device import CUDA_ERRORS, choose_device, gpu_problem
from paperbench.training.engines import engine_candidates, ways_to_train, why_best
from paperbench.training.memory import memory_free
from paperbench.training.precision import choose_precision

CPU = torch.device("cpu")


def diagnose(wanted: str, data: Path, results: Path, tables: Sequence[Table]) -> Diagnosis:
    """Find out what `run` would.

    Args:
        wanted: The device by name, or "auto".
        data: Directory with the data sets, which are loaded.
        results: Results directory, which need not exist.
    """
    found, device = Diagnosis(schema=1), None
    driver = output_of("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
    gpus = _gpus(is_listed=driver[:1].isdigit())
    try:
        device = choose_device(wanted, lambda _: None)
    except PaperbenchError as error:
        found.problems.append(str(error))
    if wanted == "auto" and device == CPU:
        found.problems.extend(f"The CPU is used, as {gpu} does not work: {why}" for gpu, why in gpus.items())
    found.facts.update({**_software(), "driver": driver or "nvidia-smi not found"})
    found.facts.update({str(gpu): _describe_gpu(gpu, problem) for gpu, problem in gpus.items()} or {"GPU": "none"})
    found.facts.update(_machine(results))
    needed = {table.id: needed_datasets(table.cells(), table.profiles.named("paper")) for table in tables}
    for key in DIRECTORIES:
        _examine_dataset(key, data.absolute(), [table for table, keys in needed.items() if key in keys], found)
    if device:
        for table in tables:
            _choose(table, device, found)
    found.facts.update({name: without_paths(one_line(fact)) for name, fact in found.facts.items()})
    for texts in (found.reasons, found.missing, found.problems):
        texts[:] = [without_paths(one_line(text)) for text in dict.fromkeys(texts)]
    return replace(found, device=str(device) if device else None)


def _software() -> dict[str, str]:
    code, environment = code_facts(), environment_facts(CPU)
    built_for = f"CUDA {torch.version.cuda} on {torch._C._cuda_getArchFlags()}" if torch.version.cuda else "CPUs"
    return {
        "paperbench": f"{code.version}, {f'commit {code.commit}' if code.commit else f'source {code.source}'}",
        "system": f"{environment.system}, {' '.join(platform.libc_ver())}, Python {environment.python}",
        "torch": f"{environment.torch}, built for {built_for}",
        "libraries": f"cuDNN {cudnn_version() or 'missing'}, timm {environment.timm}",
    }


def _gpus(*, is_listed: bool) -> dict[torch.device, str | None]:
    """Return what is wrong with every GPU that torch lists, or with the first if only the driver lists any."""
    with suppress(*CUDA_ERRORS):
        torch.cuda.init()  # before, torch believes the driver, which may list more than CUDA opens
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count() or int(is_listed))]
    return {device: gpu_problem(device) for device in devices}


def _describe_gpu(device: torch.device, problem: str | None) -> str:
    state = f"does not work: {problem.split('. ')[0]}" if problem else "works"
    try:
        of_gpu, free = torch.cuda.get_device_properties(device), format_bytes(memory_free(device) or 0)
    except CUDA_ERRORS:
        return state
    memory = f"{free} of {format_bytes(of_gpu.total_memory)} free"
    return f"{of_gpu.name}, sm_{of_gpu.major}{of_gpu.minor}, {memory}; {state}"


def _machine(results: Path) -> dict[str, str]:
    sizes, disk = [memory_free(CPU)], "unknown"
    with suppress(AttributeError, ValueError, OSError):  # not on Windows
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError):
        disk = f"{format_bytes(free_bytes(results))} free for results"
    memory = " of ".join(format_bytes(size) for size in sizes if size)
    return {"cpu": f"{describe_cpu(environment_facts(CPU), quota())}, {memory} free", "disk": disk}


def describe_cpu(environment: Environment, allowed: int | None) -> str:
    """Describe a CPU; `allowed` is a quota, if there is one, which torch's threads may exceed."""
    has_more = allowed is not None and allowed < environment.threads
    hint = f" (a cgroup allows {allowed}: set OMP_NUM_THREADS={allowed})" * has_more
    return f"{environment.device}, {environment.threads} threads{hint}"


def output_of(*command: str, seconds: float = 20.0) -> str:
    """Return the first line that a command prints within some seconds, even if it fails; "" if it does not exist."""
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} does not answer"
    except OSError:
        return ""
    return next(iter((done.stdout or done.stderr).strip().splitlines()), "")


def _examine_dataset(key: str, directory: Path, users: Sequence[str], found: Diagnosis) -> None:
    title = DATASETS[key].title
    try:
        dataset = load_dataset(key, directory)
    except PaperbenchError as error:
        reason = str(error).replace(f"{directory}/", "").replace(str(directory), "[path]").split(". ")[0]
        is_missing, need = "not found" in reason, "needs" if len(users) == 1 else "need"
        found.facts[title] = "missing" if is_missing else "cannot be used"
        (found.missing if is_missing else found.problems).append(
            f"{reason}; {listing(users)} {need} it. `paperbench data download {key}` gets the original files into "
            "./data, or where `--data DIR` says."
        )
    else:
        of_paper = "the original files, by their md5" if dataset.canonical else "not comparable with the paper"
        found.facts[title] = f"{dataset.name}, {of_paper}"


def _choose(table: Table, device: torch.device, found: Diagnosis) -> None:
    """Add what `run` takes for a table."""
    paper, own = table.profiles.named("paper"), table.experiment.precision
    precision = choose_precision(own, device)
    trainings = [
        (net, table.recipe_in(paper, cell.recipe))
        for cell in table.cells()
        for setting in cell.settings
        if isinstance(net := cell.net_in(paper, setting), Net)
    ]
    net, recipe = max(trainings, key=lambda training: _activations(training[0]))
    ways = ways_to_train(net, recipe, precision, None, engine_candidates("auto", device), WHOLE)
    fastest, free = next(ways), memory_free(device)
    found.choices.append(Choice(table.id, precision, fastest.engine, fastest.needed))
    found.reasons.append(f"{precision}: what {table.id} asks for" if own else f"{precision}: the default on {device}")
    found.reasons.append(f"{fastest.engine}: {why_best('auto', device)}")
    if free is None or fastest.needed <= free:
        return
    needed = min([fastest.needed, *(way.needed for way in ways)])
    if needed > free:
        found.problems.append(
            f"The largest net of {table.id} needs about {format_bytes(needed)} in {precision}, with its residual units "
            f"recomputed; {device} has {format_bytes(free)} free. Stop other programs there, choose smaller nets "
            "(`--cells`), or `--precision bf16`, which needs about half and counts as another experiment."
        )


def _activations(net: Net) -> tuple[int, bool, int, str]:
    """Return what roughly orders nets by the memory of their activations, and picks the same one of equals."""
    return net.depth * FAMILIES[net.family].expansion, net.gate_bias is not None, net.num_classes, net.placement
