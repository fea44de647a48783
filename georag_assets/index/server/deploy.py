"""Bringing a corpus's live build to a server, proving it there, and letting it answer.

What belongs here: the order (fill, settle, check, move the alias, prune), in place or beside, and which collection
answers. What does not: the requests (`collections`), what a check compares (`index.checks`).

Filling is a comparison of what the collection holds with what the build holds, by chunk id and content: a copy begins
with nothing there, one that was interrupted goes on, and a sync in place finds the difference. Nothing answers before
its checks were measured on the server itself and passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from georag_assets.corpus.declaration import ServerLayout
from georag_assets.corpus.models import CHUNKS
from georag_assets.errors import ServerError
from georag_assets.home import Home
from georag_assets.index import checks as index_checks
from georag_assets.index.builds import EmbeddedBuild, OpenBuild, open_build, open_build_elsewhere
from georag_assets.index.difference import contents_of
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.live import live_state
from georag_assets.index.models import PlanSettings
from georag_assets.index.recall import settle_plan
from georag_assets.index.server import collections, records
from georag_assets.index.server.connection import Address, Connection
from georag_assets.index.server.records import ServerRecord
from georag_assets.index.server.store import ServerStore
from georag_assets.index.store import StoredPoint
from georag_assets.reports import CheckResult, StageReport

STAGE = "server_index"
# Points of the embedded build read at once, and points read back after a sync beside those it wrote.
READ_AT_ONCE = 1_000
SAMPLE = 2_000


@dataclass(frozen=True, slots=True)
class Filled:
    """What bringing a collection to a build's content changed."""

    written: frozenset[str]
    deleted: int
    found: int


def serve(home: Home, corpus: str, layout: ServerLayout, connection: Connection | None = None) -> StageReport:
    """Bring the corpus's live build to the server as its layout says: beside what answers there, or in place."""
    with _connected(home, connection) as server:
        return (sync if layout.update == "in_place" else copy)(home, corpus, layout, server)


def copy(home: Home, corpus: str, layout: ServerLayout, connection: Connection) -> StageReport:
    """Copy the live build to a collection of its own, prove it there, and move the alias to it.

    The caller holds the corpus's writer lock. What answered before answers until the alias moves, in one step. A copy
    that was interrupted goes on where it was; a build that is there already is proved again and promoted again.

    Returns
    -------
    StageReport
        Blocked where a check failed on the server; then the alias is where it was.

    Raises
    ------
    IndexBuildError
        Nothing of the corpus is live.
    ServerError
        The server cannot be reached, refuses, or does not come to rest.
    """
    started = time.perf_counter()
    version = connection.version
    with open_build(home, corpus) as source:
        build = source.manifest.build
        name = collections.collection_name(corpus, build)
        record = records.read(home, connection.address, corpus, name)
        if record is not None and (record.build != build or record.towards is not None):
            raise ServerError(
                "this build's collection has been brought to another build in place",
                where=name,
                found=record.towards or record.build,
                do=f"georag index sync --corpus {corpus}",
            )
        record = replace(
            record or ServerRecord(connection.address.url, corpus, name, build, "", "filling", _now()),
            corpus_version=source.manifest.corpus_version,
            server_version=version,
            layout=layout.model_dump(mode="json"),
        )
        records.write(home, record)
        engine = _engine(source)
        collections.create(connection, name, engine, layout)
        return _brought(home, source, record, layout, connection, started, whole=True)


def sync(home: Home, corpus: str, layout: ServerLayout, connection: Connection) -> StageReport:
    """Bring the collection that answers to the live build's content in place; copy where there is none to continue.

    Readers go on meanwhile, by the earlier build's columns, and their answers say so. The checks are measured
    afterwards: where one fails the collection answers nobody until a sync or a copy passes, because what it held
    before is gone. A sync that was killed is begun again by the next.
    """
    started = time.perf_counter()
    version = connection.version
    target = collections.alias_target(connection, corpus)
    record = None if target is None else records.read(home, connection.address, corpus, target)
    with open_build(home, corpus) as source:
        if record is not None and _continues(record, source):
            if (record.build, record.state) != (source.manifest.build, "ready"):
                answers = record.state in ("ready", "syncing")
                state: records.State = "syncing" if answers else "unsound"
                record = replace(record, state=state, towards=source.manifest.build, server_version=version)
                records.write(home, record)
            return _brought(home, source, record, layout, connection, started, whole=False)
    return copy(home, corpus, layout, connection)


def _continues(record: ServerRecord, source: EmbeddedBuild) -> bool:
    """Whether a collection differs from a build by points alone: model, payload, engine and frames are the same."""
    return record.build.rsplit("-", 2)[1] == source.manifest.identity


def _brought(
    home: Home,
    source: EmbeddedBuild,
    record: ServerRecord,
    layout: ServerLayout,
    connection: Connection,
    started: float,
    *,
    whole: bool,
) -> StageReport:
    """Fill, settle, check, and let it answer where every check passed."""
    corpus, name = record.corpus, record.collection
    engine = _engine(source)
    seconds: dict[str, float] = {"prepare": round(time.perf_counter() - started, 3)}
    clock = time.perf_counter()

    def lap(step: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[step], clock = round(now - clock, 3), now

    filled = _fill(home, source, name, connection)
    lap("fill")
    settling = collections.settle(connection, name, engine, source.columns.count)
    lap("settle")
    store = ServerStore(connection, name, engine.dimension)
    plan, checks = _checked(source, store, layout, filled, whole=whole)
    lap("check")
    blocked = any(check.blocking and not check.passed for check in checks)
    build = source.manifest.build
    done = replace(
        record,
        build=record.build if blocked and not whole else build,
        corpus_version=record.corpus_version if blocked and not whole else source.manifest.corpus_version,
        towards=build if blocked and not whole else None,
        state=("filling" if whole else "unsound") if blocked else "ready",
        points=source.columns.count,
        updated_at=_now(),
        plan=_plan_of(plan),
        seconds=seconds,
        checks=checks,
    )
    records.write(home, done)
    before: str | None = None
    pruned: tuple[str, ...] = ()
    if not blocked:
        before = collections.swap_alias(connection, corpus, name)
        done = replace(done, promoted_at=_now())
        records.write(home, done)
        pruned = _prune(home, corpus, layout, connection, name)
        lap("promote")
    return StageReport(
        corpus=corpus,
        stage=STAGE,
        data_version=f"{source.manifest.build}@{connection.address.url}",
        counts={
            "new": len(filled.written),
            "reused": source.columns.count - len(filled.written),
            "removed": filled.deleted,
            "points": source.columns.count,
            "promoted": int(not blocked and before != name),
            "collections_removed": len(pruned),
        },
        seconds=seconds,
        checks=checks,
        metadata={
            "server": connection.address.url,
            "server_version": record.server_version,
            "collection": name,
            "build": source.manifest.build,
            "corpus_version": source.manifest.corpus_version,
            "in_place": not whole,
            "previous": before if before != name else None,
            "indexed_vectors": settling.indexed_vectors,
            "segments": settling.segments,
            "pruned": list(pruned),
        },
    )


def _fill(home: Home, source: EmbeddedBuild, name: str, connection: Connection) -> Filled:
    """Bring a collection to what a build holds: write what is other, delete what is not of it."""
    there = collections.contents(connection, name)
    wanted = contents_of(home, source.manifest.corpus, source.manifest.snapshots[CHUNKS.name])
    ids = source.columns.ids_of(np.arange(source.columns.count))
    other = [chunk_id for chunk_id in ids if there.get(chunk_id) != wanted.get(chunk_id)]
    strange = sorted(set(there) - set(ids))
    collections.upsert(connection, name, _points(source, other))
    collections.delete(connection, name, strange)
    collections.set_version(connection, name, source.manifest.corpus_version)
    return Filled(frozenset(other), len(strange), len(there))


def _points(source: EmbeddedBuild, ids: Sequence[str]) -> Iterator[StoredPoint]:
    for start in range(0, len(ids), READ_AT_ONCE):
        yield from source.store.points(ids[start : start + READ_AT_ONCE])


def _checked(
    source: EmbeddedBuild, store: ServerStore, layout: ServerLayout, filled: Filled, *, whole: bool
) -> tuple[PlanSettings, tuple[CheckResult, ...]]:
    """Settle how the collection is searched, and measure on the server what guards its promotion."""
    columns = source.columns
    ids = columns.ids_of(np.arange(columns.count))
    vectors = _vectors(source, ids)
    asked = PlanSettings(**source.manifest.settings["plan"])
    plan = settle_plan(store, columns, vectors, ids, asked) if store.capabilities.graph else asked
    expected = dict(zip(ids, vectors, strict=True))
    read_back = None if whole else _to_read_back(ids, filled)
    recall = index_checks.filtered_recall(store, columns, vectors, ids, plan, without_plan=whole)
    return plan, (
        index_checks.points_equal_chunks(store, columns, expected, plan, read_back=read_back),
        index_checks.every_point_names_its_source(store, columns, source.manifest.corpus_version),
        index_checks.spatial_filter_is_indexed(store, columns, plan),
        recall,
        index_checks.recall_not_below_embedded(recall, source.manifest.check("filtered_recall")),
        index_checks.answers_equal_embedded(
            # The words' rarity is counted per shard: only one shard counts as the embedded store does.
            store,
            source.store,
            columns,
            vectors,
            words=_words(source, ids) if layout.shards == 1 else (),
        ),
    )


def _to_read_back(ids: Sequence[str], filled: Filled) -> frozenset[str]:
    """Return what a sync proves point by point: all it wrote, and an even sample of the rest."""
    chosen = np.unique(np.linspace(0, len(ids) - 1, min(SAMPLE, len(ids))).astype(int))
    return filled.written | {ids[row] for row in chosen}


def _vectors(source: EmbeddedBuild, ids: Sequence[str]) -> NDArray[np.float32]:
    """Return the build's vectors in the order of ids; they were proved equal to those made before it went live."""
    vectors = np.zeros((len(ids), source.store.dimension), dtype=np.float32)
    for start in range(0, len(ids), READ_AT_ONCE):
        part = ids[start : start + READ_AT_ONCE]
        found = source.store.vectors(part)
        vectors[start : start + len(part)] = [found[chunk_id] for chunk_id in part]
    return vectors


def _words(source: EmbeddedBuild, ids: Sequence[str]) -> tuple[str, ...]:
    """Return some words of some points, to ask for."""
    chosen = [ids[row] for row in np.unique(np.linspace(0, len(ids) - 1, 8).astype(int))]
    texts = source.payloads(chosen)
    return tuple(" ".join(str(texts[chunk_id]["text"]).split()[:6]) for chunk_id in chosen if chunk_id in texts)


def _prune(home: Home, corpus: str, layout: ServerLayout, connection: Connection, live: str) -> tuple[str, ...]:
    """Drop old collections of this home; the one that answers, and the newest beside it, stay."""
    others = [record for record in records.of_corpus(home, corpus, connection.address) if record.collection != live]
    sound = [record for record in others if record.state == "ready"]
    kept = {record.collection for record in sound[max(0, len(sound) - layout.keep) :]}
    gone = [record for record in others if record.collection not in kept]
    for record in gone:
        collections.drop(connection, record.collection)
        records.forget(home, record)
    return tuple(record.collection for record in gone)


# --- answering ------------------------------------------------------------------------------------------------------


def open_served(home: Home, corpus: str, connection: Connection) -> OpenBuild | None:
    """Open what answers for a corpus on a server; None where this home never brought the corpus there.

    Raises
    ------
    ServerError
        The alias leads to a collection that this home does not know, that failed its checks, or that does not hold
        what its record says. An index that cannot be vouched for is never replaced by another in silence.
    """
    if not records.of_corpus(home, corpus, connection.address):
        return None
    version = connection.version
    target = collections.alias_target(connection, corpus)
    where = f"{connection.address.url}, alias {collections.alias_name(corpus)}"
    if target is None:
        return None
    record = records.read(home, connection.address, corpus, target)
    advice = f"run: georag index copy --corpus {corpus}, or unset GEORAG_QDRANT_URL"
    if record is None:
        raise ServerError(
            "the alias leads to a collection that this home did not fill", where=where, found=target, do=advice
        )
    if record.state not in ("ready", "syncing"):
        failed = ", ".join(check.name for check in record.checks if check.blocking and not check.passed)
        raise ServerError(
            "the collection may not answer", where=where, found=f"{record.state} {failed}".strip(), do=advice
        )
    note = None
    if record.state == "syncing":
        note = f"{corpus} is being brought to {record.towards} on the server: new passages may be missing"
    opened = open_build_elsewhere(
        home,
        corpus,
        record.build,
        lambda manifest: ServerStore(connection, target, int(manifest.settings["engine"]["dimension"])),
        plan=PlanSettings(**record.plan) if record.plan else None,
        answers_from=f"{connection.address.url} (Qdrant {version})",
        note=note,
    )
    try:
        points = opened.store.count()
        if record.state == "ready" and points != opened.columns.count:
            raise ServerError(
                "the collection does not hold what it was filled with",
                where=where,
                expected=f"{opened.columns.count} points",
                found=f"{points} points",
                do=advice,
            )
    except BaseException:
        opened.close()
        raise
    return opened


def served_build(home: Home, corpus: str, url: str) -> str | None:
    """Return the build that this home last brought to a server whole, without asking it; None where none is ready."""
    ready = [record for record in records.of_corpus(home, corpus, Address.parse(url)) if record.state == "ready"]
    promoted = [record for record in ready if record.promoted_at is not None]
    return max(promoted, key=lambda record: record.promoted_at or "").build if promoted else None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One collection as a server states it, beside what this home's record says; None where there is no record."""

    server: str
    server_version: str
    corpus: str
    collection: str
    answers: bool
    points: int
    status: str
    indexed_vectors: int
    record: ServerRecord | None
    live_build: str | None


def status(home: Home, corpus: str, connection: Connection) -> tuple[ServerStatus, ...]:
    """Return every collection of a corpus on a server."""
    target = collections.alias_target(connection, corpus)
    live = live_state(home, corpus)
    found = []
    for name in collections.names(connection, corpus):
        info = connection.call("describe the collection", lambda client, name=name: client.get_collection(name))  # type: ignore[misc]
        found.append(
            ServerStatus(
                server=connection.address.url,
                server_version=connection.version,
                corpus=corpus,
                collection=name,
                answers=name == target,
                points=ServerStore(connection, name, 0).count(),
                status=info.status.value,
                indexed_vectors=info.indexed_vectors_count or 0,
                record=records.read(home, connection.address, corpus, name),
                live_build=live.build if live else None,
            )
        )
    return tuple(found)


@contextmanager
def _connected(home: Home, given: Connection | None) -> Iterator[Connection]:
    """Use a given connection, or one of the settings for as long as this lasts."""
    if given is not None:
        yield given
        return
    with Connection.of(home.settings) as own:
        yield own


def _engine(source: EmbeddedBuild) -> EngineConfig:
    return EngineConfig(**source.manifest.settings["engine"])


def _plan_of(plan: PlanSettings) -> Mapping[str, Any]:
    return {"exact_limit": plan.exact_limit, "ids_limit": plan.ids_limit, "ef": plan.ef, "enabled": plan.enabled}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
