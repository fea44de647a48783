"""Worker processes for work on one item at a time: results in the order of the items, never many held.

What belongs here: starting, feeding and ending the processes. What does not: the work (its room).

A pool takes seconds to start and pays only for much work, so the first second of it is done in the calling process,
which goes on until the workers answer: one changed document never waits for a pool, and many lose nothing by its start.
What comes out is the same either way.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Self, TypeVar

from georag_assets.errors import WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Work that the calling process does itself before it starts any worker.
PATIENCE_S = 1.0
# Items handed out per worker and not yet taken back: enough that none waits while the caller writes what came.
_AHEAD = 3


def portions(
    items: Iterable[Item], most: int, *, size: Callable[[Item], int] = lambda _: 0, largest: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Yield the items in lists: of `most` each, or fewer where their sizes add up to `largest`."""
    held: list[Item] = []
    total = 0
    for item in items:
        held.append(item)
        total += size(item)
        if len(held) >= most or total >= largest:
            yield held
            held, total = [], 0
    if held:
        yield held


class Workers:
    """Up to `count` processes that live until the block ends; none where `count` is 1 or the work is short.

    Parameters
    ----------
    count
        Processes at most.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._worked_s = 0.0
        self._pool: ProcessPoolExecutor | None = None
        self._starting: list[Future[int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    @property
    def started(self) -> bool:
        """Whether processes run beside this one."""
        return self._pool is not None

    def in_order(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield `work(item)` for each item, in the items' order.

        `work`, items and results are pickled. At most three items per worker are under way, so memory does not grow
        with their number. An error in the work is raised here as it was there.

        Raises
        ------
        WorkerError
            A worker died: killed from outside, most often for want of memory.
        """
        coming = iter(items)
        while not self._ready():
            for item in coming:
                started = time.perf_counter()
                result = work(item)
                self._worked_s += time.perf_counter() - started
                yield result
                break
            else:
                return
        assert self._pool is not None
        yield from self._handed_out(self._pool, work, coming)

    def _ready(self) -> bool:
        """Return whether workers are there to be given items; start them where it is time."""
        if self._count == 1 or self._worked_s < PATIENCE_S:
            return False
        if self._pool is None:
            self._pool = _pool(self._count)
            self._starting = [self._pool.submit(os.getpid) for _ in range(self._count)]
        return all(answer.done() for answer in self._starting)

    def _handed_out(
        self, pool: ProcessPoolExecutor, work: Callable[[Item], Result], coming: Iterator[Item]
    ) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in coming:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= self._count * _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker process died before it gave its result",
                where=f"one of {self._count} workers of pid {os.getpid()}",
                found="it was killed, most often by the kernel for want of memory",
                do="give the machine more memory, or set GEORAG_WORKERS=1 to work in one process, and run again",
            ) from error
        finally:
            for future in waiting:
                future.cancel()


def _pool(count: int) -> ProcessPoolExecutor:
    # Spawned, never forked: a fork copies locks that other threads hold, and the writer lock's file with them.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """End this worker when its parent is killed: it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
