"""The manifest of a build: what the folder must hold to be one, and what was established about it.

What belongs here: the record, sealing a finished folder, verifying it, adding a check's result. What does not: the
order in which a build is made (`builds`) and what makes it live (`live`).

A killed or truncated engine folder still loads and answers, wrongly and in silence; so only a folder whose manifest
verifies is a build, and the manifest is the last file written before the folder gets its name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from georag_assets.errors import IndexBuildError
from georag_assets.index.files import files_below, sizes, sync_tree, write_json
from georag_assets.reports import CheckResult

NAME = "manifest.json"
READERS = "readers.lock"
FORMAT = 1
# The engine replaces small files through such folders whenever somebody opens the build.
_PASSING = ".atomicwrite"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Length and content of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One build.

    Attributes
    ----------
    build
        `<corpus version>-<identity>-<attempt>`, the folder's name.
    identity
        Hash of `settings`: every upstream code version and setting.
    snapshots
        Table name -> Iceberg snapshot id that the build was made from; with them it can be made again.
    allocated_bytes, apparent_bytes
        Space on disk, and the files' lengths: holes make them differ by far.
    footprint_bytes
        n * dim * 4 + n * m * 2 * 4: what vectors and graph cost by arithmetic.
    base
        The earlier build that this one continues; None where it was written whole.
    needs_evaluation
        Whether the corpus has labelled queries, whose checks are then required before promotion.
    """

    corpus: str
    build: str
    corpus_version: str
    identity: str
    created_at: str
    counts: Mapping[str, int]
    settings: Mapping[str, Any]
    snapshots: Mapping[str, int]
    seconds: Mapping[str, float]
    footprint_bytes: int
    rebuild_seconds: float
    needs_evaluation: bool = False
    base: str | None = None
    allocated_bytes: int = 0
    apparent_bytes: int = 0
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    checks: tuple[CheckResult, ...] = ()
    format: int = FORMAT

    def check(self, name: str) -> CheckResult | None:
        """Return the recorded result of a check, or None."""
        return next((check for check in self.checks if check.name == name), None)

    def with_checks(self, *checks: CheckResult) -> Manifest:
        """Return the manifest with results added; a newer result of the same name replaces the older."""
        names = {check.name for check in checks}
        kept = tuple(check for check in self.checks if check.name not in names)
        return replace(self, checks=kept + checks)


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Hash every file of a finished folder, write its manifest and flush all of it; return the manifest written."""
    (folder / READERS).touch()
    allocated, apparent = sizes(folder)
    files = {name: _record(folder / name) for name in files_below(folder) if name not in {NAME, READERS}}
    sealed = replace(manifest, files=files, allocated_bytes=allocated, apparent_bytes=apparent)
    write(folder, sealed)
    sync_tree(folder)
    return sealed


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the folder's manifest atomically."""
    write_json(folder / NAME, finite(asdict(manifest)))


def read(folder: Path) -> Manifest:
    """Return a folder's manifest without looking at its files.

    Raises
    ------
    IndexBuildError
        There is none, it is not whole, or it is of a format that this version does not know.
    """
    path = folder / NAME
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexBuildError("this folder is no index build: it has no manifest", where=str(path)) from None
    except (ValueError, OSError) as error:
        raise IndexBuildError("the manifest cannot be read", where=str(path), found=type(error).__name__) from error
    try:
        if value["format"] != FORMAT:
            raise IndexBuildError(
                "the build is of another format", where=str(path), expected=str(FORMAT), found=str(value["format"])
            )
        value["files"] = {name: FileRecord(**record) for name, record in value["files"].items()}
        value["checks"] = tuple(CheckResult(**check) for check in value["checks"])
        return Manifest(**value)
    except (KeyError, TypeError, AttributeError) as error:
        raise IndexBuildError("the manifest is not whole", where=str(path), found=str(error)) from error


def verify(folder: Path, *, deep: bool = True) -> Manifest:
    """Return the manifest of a folder that is what its manifest says; name the first file that is not.

    Parameters
    ----------
    deep
        Compare contents; else only which files there are and how long they are.
    """
    manifest = read(folder)
    if manifest.build != folder.name:
        raise IndexBuildError(
            "the folder's name is not its build's", where=str(folder), expected=manifest.build, found=folder.name
        )
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise IndexBuildError("a file of the index build is missing", where=str(path))
        if (found := path.stat().st_size) != record.bytes:
            raise IndexBuildError(
                "a file of the index build has another length",
                where=str(path),
                expected=f"{record.bytes} bytes",
                found=f"{found} bytes",
            )
    for name in files_below(folder):
        # A segment too many answers as well as one too few.
        if name not in manifest.files and name not in {NAME, READERS} and _PASSING not in name and name[0] != ".":
            raise IndexBuildError("the index build holds a file that is not its own", where=str(folder / name))
    for name, record in manifest.files.items() if deep else ():
        if (digest := _record(folder / name).sha256) != record.sha256:
            raise IndexBuildError(
                "a file of the index build has changed",
                where=str(folder / name),
                expected=record.sha256,
                found=digest,
            )
    return manifest


def _record(path: Path) -> FileRecord:
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return FileRecord(size, hashlib.file_digest(stream, "sha256").hexdigest())


def finite(value: Any) -> Any:
    """Return JSON-able data without NaN and infinity, which JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
