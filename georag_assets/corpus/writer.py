"""One writer per corpus, or one per shard of it: operating-system locks that die with their process.

What belongs here: taking and holding the locks. What does not: who runs under them (`operations.pipeline`,
`components`).

A writer of the whole corpus holds its lock alone. A writer of a shard shares that lock with the other shards' and holds
the shard's alone, so that shards run side by side and nothing that joins them runs meanwhile. A lock file that outlives
its process locks nothing: the kernel releases `flock` on any death, kill -9 included.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from georag_assets.corpus.shards import WHOLE, Shard
from georag_assets.errors import GeoragError, WriterBusyError
from georag_assets.home import Home

_GLANCE_S = 0.05


@contextmanager
def writing(home: Home, corpus: str, shard: Shard = WHOLE) -> Iterator[None]:
    """Hold the writer lock of the corpus, or of a shard of it.

    Raises
    ------
    WriterBusyError
        Another process (or another run in this one) holds it, or one that excludes it; names its process id.
    """
    path = home.lock_file(corpus)
    with ExitStack() as stack:
        handle = stack.enter_context(_opened(path))
        try:
            _take(handle, fcntl.LOCK_EX if shard.whole else fcntl.LOCK_SH)
        except BlockingIOError as error:
            busy = [] if not shard.whole else _busy_shards(home, corpus)
            raise _busy(f"corpus {corpus}", busy[0] if busy else path) from error
        if shard.whole:
            _sign(handle)
        else:
            own = home.lock_file(corpus, shard.name)
            handle = stack.enter_context(_opened(own))
            try:
                _take(handle, fcntl.LOCK_EX)
            except BlockingIOError as error:
                raise _busy(f"shard {shard.name} of corpus {corpus}", own) from error
            _sign(handle)
            # Shares of another number overlap with this one.
            for other in _busy_shards(home, corpus):
                if not other.name.endswith(f"-of-{shard.of}.lock"):
                    raise _busy(f"another sharding of corpus {corpus}", other)
        yield


def is_busy(home: Home, corpus: str, shard: Shard = WHOLE) -> bool:
    """Return whether somebody writes the corpus, or what a shard's writer would, now.

    A run that was killed does not count, whatever Dagster says.
    """
    if _is_held(home.lock_file(corpus)):
        return True
    return bool(_busy_shards(home, corpus)) if shard.whole else _is_held(home.lock_file(corpus, shard.name))


def _busy_shards(home: Home, corpus: str) -> list[Path]:
    path = home.lock_file(corpus)
    return [other for other in sorted(path.parent.glob(f"{corpus}.*-of-*.lock")) if _is_held(other)]


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise GeoragError(
            "the home folder cannot be written",
            where=str(error.filename or path),
            found=error.strerror,
            do="set GEORAG_HOME to a folder that can",
        ) from error
    try:
        yield handle
    finally:
        os.close(handle)


def _sign(handle: int) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)


def _busy(what: str, path: Path) -> WriterBusyError:
    try:
        holder = path.read_text("ascii", "replace").strip()
    except OSError:
        holder = ""
    return WriterBusyError(
        f"{what} is being written by pid {holder or 'unknown'}", where=str(path), do="wait until that run ends"
    )


def _is_held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _take(handle: int, kind: int) -> None:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:  # `is_busy` of another process looks for a moment: look again before refusing
        time.sleep(_GLANCE_S)
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
