from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from paperbench.bench.anatomy.job import Job
from paperbench.bench.anatomy.plan import PARTS, Part, Task, checked_parts, plan
from paperbench.bench.anatomy.scale import FULL, QUICK, checked_models, choose_scale
from paperbench.bench.anatomy.schedule import Outcome, Schedule
from paperbench.errors import PaperbenchError
from tests.helpers import ROOT

PART = Part("ladder", "a part", "no.module", by_model=True)


def run(*faults: str, seconds: float = 60.0, weights: tuple[float, ...] = (), device: str = "cpu") -> list[Outcome]:
    job = Job("", "", None, (), "quick", device, 0.0, "")
    schedule = Schedule(job, seconds, lambda line: None, worker="tests.bench.anatomy.faulty_worker")
    tasks = [Task(PART, fault, weights[i] if weights else 1.0) for i, fault in enumerate(faults)]
    return list(schedule.run(tasks))


def ends(process: int) -> bool:
    """Whether a process ends within ten seconds."""
    for _ in range(200):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("abort", "SIGABRT"),
        ("raise", "illegal memory access"),
        ("silent end", "status 0"),
        ("half a line", "SIGABRT"),
        ("raise with a path", "RuntimeError: cannot read [path] at 3 images/s"),
    ],
)
def test_a_part_that_crashes_loses_itself_alone_and_keeps_its_rows(fault: str, why: str) -> None:
    first, second = run(fault, "fine")
    assert first.status == "crashed"
    assert why in str(first.why)
    assert first.rows == [{"before": fault}]
    assert (second.status, second.why, second.rows) == ("complete", None, [{"before": "fine"}])


def test_a_part_that_hangs_is_killed_at_its_limit_with_its_children_and_keeps_its_rows() -> None:
    first, second = run("hang with a child", "fine", seconds=40, weights=(1, 9))
    assert first.status == "killed"
    assert first.limit_seconds == pytest.approx(4, abs=0.1)
    assert 4 <= first.seconds < 8
    assert second.status == "complete"
    child = next(row["child"] for row in first.rows if "child" in row)
    assert ends(child)


def test_why_a_part_was_killed_tells_what_it_last_said() -> None:
    (only,) = run("hang", seconds=4)
    assert only.status == "killed"
    assert only.why == "still running after 4 s; last said: waiting for a kernel that never ends"


def test_time_that_a_part_does_not_use_goes_to_the_later_ones() -> None:
    first, second = run("fine", "fine", seconds=40, weights=(3, 1))
    assert first.limit_seconds == pytest.approx(30, abs=0.5)
    assert second.limit_seconds == pytest.approx(40 - first.seconds, abs=0.5)


def test_a_part_for_which_no_time_is_left_is_not_begun() -> None:
    first, second = run("hang", "fine", seconds=6, weights=(5, 1))
    assert first.status == "killed"
    assert (second.status, second.why, second.limit_seconds) == ("not run", "no time was left", None)


def test_parts_for_gpus_are_not_run_without_one_and_take_no_time() -> None:
    job = Job("", "", None, (), "quick", "cpu", 0.0, "")
    schedule = Schedule(job, 30, lambda line: None, worker="tests.bench.anatomy.faulty_worker")
    gpu, other = schedule.run([Task(PARTS["autotuned"], None, 9.0), Task(PART, "fine", 1.0)])
    assert gpu.status == "not run"
    assert "needs a GPU" in str(gpu.why)
    assert other.limit_seconds == pytest.approx(30, abs=0.5)


def test_a_signal_ends_the_part_at_work_and_those_after_it() -> None:
    program = (
        "from tests.bench.anatomy.test_schedule import run\n"
        "print(flush=True)\n"
        "print([(o.status, len(o.rows)) for o in run('fine', 'hang', 'fine', seconds=300)])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(6)
    process.send_signal(signal.SIGTERM)
    told, errors = process.communicate(timeout=30)
    assert told.strip() == "[('complete', 1), ('interrupted', 1), ('not run', 0)]", errors


def test_a_worker_ends_soon_after_the_command_that_started_it() -> None:
    child = (
        "import os, time; from paperbench.bench.anatomy.worker import end_with; end_with(os.getppid()); time.sleep(60)"
    )
    parent = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=2); "
        "print(p.pid, flush=True); time.sleep(3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert ends(int(done.stdout))


def test_the_plan_puts_the_decisive_and_the_shallow_first() -> None:
    depths = {name: net.depth for name, net in checked_models(FULL.models).items()}
    tasks = plan(checked_parts(None), dict(reversed(depths.items())))
    labels = [task.label for task in tasks]
    assert labels[:5] == [
        "machine",
        "convolutions",
        "normalisation",
        "kernels preact_resnet110",
        "ladder preact_resnet110",
    ]
    assert labels.index("ladder preact_resnet1001") < labels.index("seeds") < labels.index("imagenet")
    assert {task.part.name for task in tasks} == set(PARTS)
    assert max(tasks, key=lambda task: task.weight).label == "ladder preact_resnet1001"
    assert 570 <= sum(task.weight for task in tasks) <= 640  # seconds of ten minutes
    assert [task.label for task in plan(checked_parts(["seeds", "machine"]), depths)] == ["machine", "seeds"]


def test_names_that_mean_nothing_are_refused() -> None:
    with pytest.raises(PaperbenchError, match="Did you mean 'seeds'"):
        checked_parts(["seed"])
    with pytest.raises(PaperbenchError, match="large images"):
        checked_models(("preact_resnet200",))
    with pytest.raises(PaperbenchError, match="twice"):
        checked_models(("preact_resnet20", "preact_resnet20"))


def test_a_cpu_is_measured_with_less_and_says_so() -> None:
    assert choose_scale("cuda", quick=False) is FULL
    assert FULL.note is None
    small = choose_scale("cpu", quick=False)
    assert small.batch_size < FULL.batch_size
    assert small.note is not None
    assert choose_scale("cuda", quick=True) is QUICK
