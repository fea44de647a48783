"""The folders that builds live in: which there are, who reads one, what is left over.

What belongs here: names, staging, the readers' lock, discarding. What does not: what a build holds (`manifest`), which
one is live (`live`).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from georag_assets.errors import GeoragError, IndexBuildError
from georag_assets.home import Home
from georag_assets.index import manifest as manifests
from georag_assets.index.manifest import READERS, Manifest

STAGING = ".staging-"
DISCARDED = ".discarded-"
_BUILD = re.compile(r"v\d+-[0-9a-f]{8}-[0-9a-f]{8}-\d+")


def build_folder(home: Home, corpus: str, build: str) -> Path:
    """Return the folder of a build by name; the name can only be one, whatever a caller was given."""
    if not _BUILD.fullmatch(build):
        raise IndexBuildError("this is not the name of an index build", expected="v3-1a2b3c4d-5e6f7a8b-1")
    return home.builds_folder(corpus) / build


def complete_builds(home: Home, corpus: str) -> list[Manifest]:
    """Return the manifests of the corpus's builds, oldest first; what has no readable manifest is no build."""
    found = []
    for folder in _children(home.builds_folder(corpus)):
        if _BUILD.fullmatch(folder.name):
            try:
                found.append(manifests.read(folder))
            except GeoragError:
                continue
    return sorted(found, key=lambda manifest: (manifest.created_at, manifest.build))


def discard_leftovers(home: Home, corpus: str) -> int:
    """Delete what killed runs left under temporary names; only the corpus's one writer may call this."""
    left = [folder for folder in _children(home.builds_folder(corpus)) if folder.name.startswith((STAGING, DISCARDED))]
    for folder in left:
        shutil.rmtree(folder, ignore_errors=True)
    return len(left)


def discard(folder: Path) -> bool:
    """Delete a build unless somebody reads it; it stops being a build in one step, whatever kills the deletion."""
    with folder.joinpath(READERS).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        gone = folder.with_name(f"{DISCARDED}{folder.name}")
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    return True


@dataclass(frozen=True, slots=True)
class ReaderLock:
    """A shared lock on a build: while it is held no pruning deletes the folder."""

    handle: int

    def release(self) -> None:
        """Let the folder go."""
        os.close(self.handle)


def lock_for_reading(folder: Path) -> ReaderLock | None:
    """Lock a build's folder against deletion; None where it is gone (then the live pointer has moved)."""
    path = folder / READERS
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        # Deleted between opening and locking: the lock is then on a file that no name leads to.
        if os.path.samestat(os.fstat(handle), path.stat()):
            return ReaderLock(handle)
    except FileNotFoundError:
        pass
    os.close(handle)
    return None


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a short lock between processes, for reading and replacing one small file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _children(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
