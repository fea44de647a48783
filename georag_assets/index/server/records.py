"""What this home knows about the servers it filled: a file for each collection.

What belongs here: the record, reading and replacing it. What does not: asking a server (`collections`), deciding what a
record allows (`deploy`).

A server's results are kept apart from the build's manifest: there a newer result of one name replaces the older, and an
outcome on a server would hide the embedded build's own. The record names the build whose columns the planner counts
with; a home that has no record of a collection cannot search it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from georag_assets.errors import GeoragError, ServerError
from georag_assets.home import Home
from georag_assets.index.files import write_json
from georag_assets.index.manifest import finite
from georag_assets.index.server.connection import Address
from georag_assets.reports import CheckResult

State = Literal["filling", "ready", "syncing", "unsound"]


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One collection of one server.

    Attributes
    ----------
    build
        The build that the collection holds; while `syncing`, the one that it held.
    towards
        While `syncing` or `unsound`, the build that it is being brought to.
    state
        `filling` and `unsound` answer nobody; `syncing` answers by the columns of `build`, and says so.
    plan
        How this collection is searched, as its own sweep settled it.
    checks
        Measured on the server, after the last time it was filled or synced.
    """

    server: str
    corpus: str
    collection: str
    build: str
    corpus_version: str
    state: State
    created_at: str
    points: int = 0
    towards: str | None = None
    updated_at: str | None = None
    promoted_at: str | None = None
    server_version: str | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    checks: tuple[CheckResult, ...] = ()


def write(home: Home, record: ServerRecord) -> None:
    """Replace a collection's record atomically."""
    path = _path(home, Address.parse(record.server), record.corpus, record.collection)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, finite(asdict(record)))


def read(home: Home, address: Address, corpus: str, collection: str) -> ServerRecord | None:
    """Return a collection's record; None where this home has none.

    Raises
    ------
    ServerError
        It is there and cannot be read: never taken for "not there".
    """
    path = _path(home, address, corpus, collection)
    return _read(path) if path.exists() else None


def forget(home: Home, record: ServerRecord) -> None:
    """Delete the record of a collection that was dropped."""
    _path(home, Address.parse(record.server), record.corpus, record.collection).unlink(missing_ok=True)


def of_corpus(home: Home, corpus: str, address: Address | None = None) -> list[ServerRecord]:
    """Return the records of a corpus's collections, oldest first, on one server or on all."""
    folders = [_folder(home, address, corpus)] if address else sorted(home.servers_folder.glob(f"*/{corpus}"))
    found = [_read(path) for folder in folders for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda record: (record.created_at, record.collection))


def builds_that_answer(home: Home, corpus: str) -> set[str]:
    """Return the builds whose columns some server's collection is searched with, or is being brought to."""
    found: set[str] = set()
    for record in of_corpus(home, corpus):
        found |= {record.build} | ({record.towards} if record.towards else set())
    return found


def _folder(home: Home, address: Address, corpus: str) -> Path:
    return home.servers_folder / address.folder / corpus


def _path(home: Home, address: Address, corpus: str, collection: str) -> Path:
    return _folder(home, address, corpus) / f"{collection}.json"


def _read(path: Path) -> ServerRecord:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        checks = tuple(CheckResult(**check) for check in value.pop("checks"))
        return ServerRecord(**value, checks=checks)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, GeoragError) as error:
        raise ServerError(
            "the record of a server's collection cannot be read",
            where=str(path),
            found=type(error).__name__,
            do="delete it and run: georag index copy",
        ) from error
