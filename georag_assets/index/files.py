"""Files that must be whole or absent: atomic JSON, durable folders, copies that keep holes, space before mapped writes.

What belongs here: what any build needs of a file system. What does not: what the files mean (`manifest`, `live`).

Engine files are sparse (85 MB long, 2 MB allocated), and on tmpfs merely opening a build allocates its holes; when the
space is not there, the kernel kills the process (SIGBUS) instead of raising.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from georag_assets.errors import DiskSpaceError

# The engine rewrites two small files at each start; measured: 64 KiB are enough.
OPENING_BYTES = 256 * 1024


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Replace a JSON file atomically and durably; NaN and infinity are refused."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full(path, None) from error
        raise
    finally:
        Path(name).unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush one file or folder entry to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below, so that a rename after it names complete content even after a power cut."""
    for place, _, names in os.walk(folder):
        for name in names:
            sync(Path(place) / name)
        sync(Path(place))


def files_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of regular files below a folder, sorted."""
    yield from sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def sizes(folder: Path) -> tuple[int, int]:
    """Return (allocated, apparent) bytes of a folder's files."""
    found = [(folder / name).stat() for name in files_below(folder)]
    return sum(stat.st_blocks * 512 for stat in found), sum(stat.st_size for stat in found)


def copy_tree(source: Path, target: Path) -> int:
    """Copy a folder keeping holes; return the bytes of data copied."""
    written = 0
    for name in files_below(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        written += copy_file(source / name, target / name)
    return written


def copy_file(source: Path, target: Path) -> int:
    """Copy one file keeping its holes; return the bytes of data copied."""
    written = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        start = 0
        while start < size:
            try:
                start = os.lseek(reader.fileno(), start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    break
                raise
            end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            reader.seek(start)
            writer.seek(start)
            shutil.copyfileobj(_Bounded(reader, end - start), writer, 1024 * 1024)
            written += end - start
            start = end
        writer.flush()
    return written


class _Bounded:
    """The next `left` bytes of a stream."""

    def __init__(self, stream: object, left: int) -> None:
        self._stream = stream
        self._left = left

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data: bytes = self._stream.read(wanted)  # type: ignore[attr-defined]
        self._left -= len(data)
        return data


def on_tmpfs(path: Path) -> bool:
    """Tell whether a path lies on tmpfs, where holes take space when they are read through a mapping."""
    resolved = path.resolve()
    best, kind = -1, ""
    with contextlib.suppress(OSError), Path("/proc/self/mountinfo").open(encoding="utf-8") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            mount = before.split()[4].replace("\\040", " ")
            if resolved.is_relative_to(mount) and len(mount) >= best:
                best, kind = len(mount), after.split()[0]
    return kind in {"tmpfs", "ramfs"}


def reserve_for_opening(folder: Path) -> None:
    """Make sure that opening an engine folder cannot be killed by a full disk; raise `DiskSpaceError` instead.

    On tmpfs the holes are allocated now, by a call that fails with an error where a mapped read would end in SIGBUS.
    """
    free = shutil.disk_usage(folder).free
    if free < OPENING_BYTES:
        raise _disk_full(folder, free)
    if not on_tmpfs(folder):
        return
    for name in files_below(folder):
        path = folder / name
        stat = path.stat()
        if stat.st_blocks * 512 >= stat.st_size:
            continue
        handle = os.open(path, os.O_RDWR)
        try:
            os.posix_fallocate(handle, 0, stat.st_size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise _disk_full(folder, free) from error
            raise
        finally:
            os.close(handle)


def room_for_copy(source: Path, target: Path) -> None:
    """Raise `DiskSpaceError` where a private copy of `source` under `target` would not fit when it is opened."""
    allocated, apparent = sizes(source)
    needed = (apparent if on_tmpfs(target) else allocated) + OPENING_BYTES
    free = shutil.disk_usage(target).free
    if free < needed:
        raise _disk_full(target, free, needed)


def _disk_full(path: Path, free: int | None, needed: int = OPENING_BYTES) -> DiskSpaceError:
    return DiskSpaceError(
        "disk full",
        where=str(path),
        expected=f"free space of at least {needed} bytes",
        found="none" if free is None else f"{free} bytes",
        do="free space on that file system; nothing was changed",
    )
