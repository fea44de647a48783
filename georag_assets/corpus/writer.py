"""One writer per corpus: an operating-system lock that dies with its process.

What belongs here: taking and holding the lock. What does not: who runs under it (`operations.pipeline`, `components`).
A lock file that outlives its process locks nothing: the kernel releases `flock` on any death, kill -9 included.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from georag_assets.errors import GeoragError, WriterBusyError
from georag_assets.home import Home

_GLANCE_S = 0.05


@contextmanager
def writing(home: Home, corpus: str) -> Iterator[None]:
    """Hold the corpus's writer lock.

    Raises
    ------
    WriterBusyError
        Another process (or another run in this one) holds it; names its process id.
    """
    path = home.lock_file(corpus)
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
        try:
            _take(handle)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise WriterBusyError(
                f"corpus {corpus} is being written by pid {holder}", where=str(path), do="wait until that run ends"
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def is_busy(home: Home, corpus: str) -> bool:
    """Return whether somebody writes the corpus now; a run that was killed does not count, whatever Dagster says."""
    try:
        handle = os.open(home.lock_file(corpus), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _take(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # `is_busy` of another process looks for a moment: look again before refusing
        time.sleep(_GLANCE_S)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
