"""Worker processes: order, bounds, errors, deaths. What they compute is tested where it is computed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from georag_assets import workers as module
from georag_assets.errors import GeometryError, WorkerError
from georag_assets.workers import Workers


def squared(number: int) -> tuple[int, int]:
    return os.getpid(), number * number


def refusing(number: int) -> int:
    if number == 5:
        raise GeometryError("a ring is open", where=f"item {number}", do="close it")
    return number


def dying(victim: int, number: int) -> int:
    if number == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.usefixtures("workers_at_once")
def test_results_come_in_the_order_of_the_items_from_other_processes() -> None:
    with Workers(2) as workers:
        done = list(workers.in_order(squared, range(40)))
        again = list(workers.in_order(squared, range(3)))
    assert [result for _, result in done] == [number * number for number in range(40)]
    assert [result for _, result in again] == [0, 1, 4]
    assert os.getpid() not in {pid for pid, _ in done}
    assert {pid for pid, _ in again} <= {pid for pid, _ in done}, "the processes live until the block ends"


def test_little_work_starts_no_process() -> None:
    with Workers(8) as workers:
        assert {pid for pid, _ in workers.in_order(squared, range(100))} == {os.getpid()}
        assert not workers.started


def test_the_calling_process_works_until_the_workers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with Workers(2) as workers:
        pids = []
        # As many as it takes: how long a process needs to start is the machine's matter.
        for pid, _ in workers.in_order(squared, itertools.count()):
            pids.append(pid)
            if pid != os.getpid():
                break
    assert len(pids) > 1
    assert set(pids[:-1]) == {os.getpid()}


def test_one_worker_is_the_calling_process(workers_at_once: None) -> None:
    with Workers(1) as workers:
        assert {pid for pid, _ in workers.in_order(squared, range(100))} == {os.getpid()}


@pytest.mark.usefixtures("workers_at_once")
def test_no_more_is_taken_than_is_under_way() -> None:
    taken, most = 0, 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(60):
            taken += 1
            yield number

    with Workers(2) as workers:
        for done, _ in enumerate(workers.in_order(squared, items())):
            most = max(most, taken - done)
    assert taken == 60
    assert most <= 6


@pytest.mark.usefixtures("workers_at_once")
def test_an_error_is_raised_as_it_was_in_the_worker() -> None:
    with Workers(2) as workers, pytest.raises(GeometryError, match="a ring is open; where: item 5; do: close it"):
        list(workers.in_order(refusing, range(20)))


@pytest.mark.usefixtures("workers_at_once")
def test_a_dead_worker_is_an_error_that_says_what_to_do() -> None:
    with Workers(2) as workers, pytest.raises(WorkerError, match="GEORAG_WORKERS=1"):
        list(workers.in_order(partial(dying, 7), range(20)))


@pytest.mark.usefixtures("workers_at_once")
def test_processes_end_with_the_block_also_where_it_is_left_early() -> None:
    with Workers(2) as workers:
        results = workers.in_order(squared, range(1000))
        next(results)
        children = [child for child in psutil.Process().children() if "spawn_main" in _command(child)]
        assert len(children) == 2
        results.close()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


_PARENT = """
import itertools, os, sys
from georag_assets import workers
from georag_assets_tests.test_workers import squared
if __name__ == "__main__":
    workers.PATIENCE_S = 0.0
    with workers.Workers(2) as pool:
        pids = set()
        for pid, _ in pool.in_order(squared, itertools.count()):
            if pid != os.getpid():
                pids.add(pid)
            if len(pids) == 2:
                break
        print(*pids, flush=True)
        sys.stdin.read()
"""


def test_workers_of_a_killed_parent_do_not_stay() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert children
    finally:
        parent.kill()
        parent.communicate()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
