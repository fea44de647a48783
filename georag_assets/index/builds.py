"""Index builds: made under a temporary name, checked, sealed, named; and opened again by readers.

What belongs here: a build's identity, the order of making one, opening one. What does not: writing points
(`engine_writer`), the checks (`checks`), what a verified folder is (`manifest`), which build is live (`live`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from georag_assets.corpus.models import CHUNKS, DOCUMENTS, QUARANTINE
from georag_assets.corpus.versions import newest_version
from georag_assets.errors import DiskSpaceError, GeoragError, IndexBuildError
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.index import checks as index_checks
from georag_assets.index import files, folders
from georag_assets.index import manifest as manifests
from georag_assets.index.columns import Columns, ColumnsWriter
from georag_assets.index.difference import REPLACED, Difference, difference
from georag_assets.index.embedded import EmbeddedStore
from georag_assets.index.embedding import Embedder
from georag_assets.index.embedding_stage import (
    EMBEDDINGS,
    Named,
    drop_doubled,
    settle_vector_set,
    texts_per_second,
    unfit_chunks,
    vector_reader,
)
from georag_assets.index.engine_writer import (
    EngineConfig,
    EngineSummary,
    Takeover,
    WriterProcess,
    footprint_bytes,
    write_engine,
)
from georag_assets.index.folders import ReaderLock
from georag_assets.index.lexical import LexicalEmbedder
from georag_assets.index.live import live_build, missing_checks
from georag_assets.index.manifest import Manifest
from georag_assets.index.models import DenseQuery, LexicalQuery, PlanSettings, SearchFilter, SearchReport
from georag_assets.index.payload import PAYLOAD
from georag_assets.index.planner import PlannedSearch
from georag_assets.index.points import geometry_batches, point_batches
from georag_assets.index.recall import settle_plan
from georag_assets.index.store import Payload, Store
from georag_assets.reports import CheckResult, StageReport
from georag_assets.tables.measurements import latest_checks

STAGE = "index_build"
UPSTREAM = ("documents", "corpus_version", "chunks", "frames", "embeddings")
# Raised when what a build holds changes without a setting that says so.
LAYOUT = "build-1"
ENGINE, COLUMNS = "engine", "columns"


class Declared(Named, Protocol):
    """What a build needs of a declaration."""

    @property
    def evaluation(self) -> object | None:
        """Labelled queries, if the corpus has any."""
        ...


@dataclass(frozen=True)
class _Plan:
    """Everything that decides what a build will hold, read once before anything is written."""

    corpus: str
    corpus_version: str
    settings: Mapping[str, Any]
    snapshots: Mapping[str, int]
    vector_set: str
    engine: EngineConfig
    search: PlanSettings

    @property
    def identity(self) -> str:
        """Eight hex digits over the settings."""
        text = json.dumps(self.settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def prefix(self) -> str:
        """A build's name without its attempt."""
        return f"{self.corpus_version}-{self.identity}-"


def build_index(home: Home, declaration: Declared, *, embedder: Embedder | None = None) -> StageReport:
    """Make the index build of the corpus's newest version, or return the kept one that equals it.

    The caller holds the corpus's writer lock. Whatever stops this, no half build gets a build's name, and the live
    index is not touched: that is `live.promote`'s.

    Returns
    -------
    StageReport
        `metadata["build"]` names the build; its blocking checks are in the report and in its manifest.
    """
    started = time.perf_counter()
    corpus = declaration.name
    folders.discard_leftovers(home, corpus)
    plan = _plan(home, corpus, embedder or Embedder.load(home.settings))
    upstream = latest_checks(home.tables, corpus, UPSTREAM)
    evaluated = declaration.evaluation is not None
    kept = _kept_build(home, plan)
    if kept is not None:
        manifest = replace(kept.with_checks(*upstream), needs_evaluation=evaluated)
        manifests.write(folders.build_folder(home, corpus, manifest.build), manifest)
    else:
        manifest = _make(home, plan, upstream, evaluated)
    # Also for a kept one: the run that made it may have died before its tags.
    for spec in (CHUNKS, FRAMES, EMBEDDINGS):
        home.tables.tag(corpus, spec, f"build-{manifest.build}", manifest.snapshots[spec.name])
    seconds = {**manifest.seconds} if kept is None else {"verify": time.perf_counter() - started}
    return _report(manifest, reused=kept is not None, seconds=seconds)


def record_check(home: Home, corpus: str, build: str, *checks: CheckResult) -> Manifest:
    """Add checks' results to a build's manifest; a newer result of the same name replaces the older."""
    folder = folders.build_folder(home, corpus, build)
    with folders.exclusive(folder.parent / ".manifest.lock"):
        manifest = manifests.read(folder).with_checks(*checks)
        manifests.write(folder, manifest)
    return manifest


# --- making -------------------------------------------------------------------------------------------------------


def _plan(home: Home, corpus: str, embedder: Embedder) -> _Plan:
    version = newest_version(home, corpus)
    if version is None:
        raise IndexBuildError(f"corpus {corpus} has no version yet", do="sync its documents first")
    vector_set = settle_vector_set(home, corpus, embedder)
    drop_doubled(home, corpus, vector_set)
    tags = home.tables.tags(corpus, DOCUMENTS)
    snapshots = {
        spec.name: found
        for spec in (CHUNKS, FRAMES, EMBEDDINGS)
        if (found := home.tables.snapshot_id(corpus, spec)) is not None
    }
    lacking = [spec.name for spec in (CHUNKS, FRAMES, EMBEDDINGS) if spec.name not in snapshots]
    if lacking or version not in tags:
        raise IndexBuildError(
            f"corpus {corpus} is not ready to be indexed",
            where=", ".join(lacking) or "documents",
            do="run the stages before this one",
        )
    snapshots[DOCUMENTS.name] = tags[version]
    _refuse_unequal(home, corpus, snapshots)
    engine = EngineConfig(dimension=embedder.identity.dimension)
    search = PlanSettings(exact_limit=home.settings.exact_limit)
    settings = {
        "layout": LAYOUT,
        "chunks": _code_versions(home, corpus, CHUNKS.name, snapshots),
        "frames": _code_versions(home, corpus, FRAMES.name, snapshots),
        "vector_set": vector_set,
        "model": asdict(embedder.identity),
        "lexical": LexicalEmbedder().name,
        "payload": [[field.name, str(field.type), field.index] for field in PAYLOAD],
        "engine": asdict(engine),
        "plan": asdict(search),
    }
    return _Plan(corpus, version, settings, snapshots, vector_set, engine, search)


def _code_versions(home: Home, corpus: str, name: str, snapshots: Mapping[str, int]) -> list[str]:
    spec = CHUNKS if name == CHUNKS.name else FRAMES
    column = home.tables.read(corpus, spec, columns=["code_version"], snapshot_id=snapshots[name])["code_version"]
    return sorted(str(value) for value in pc.unique(column).to_pylist())


def _refuse_unequal(home: Home, corpus: str, snapshots: Mapping[str, int]) -> None:
    """Refuse chunks or frames that were made from other content than the version's documents, or that are not all.

    A shard whose run failed, or has not been, leaves both behind.
    """

    def contents(spec: Any) -> set[tuple[str, str]]:
        names = ["doc_id", "content_sha256"]
        table = home.tables.read(corpus, spec, columns=names, snapshot_id=snapshots[spec.name])
        return set(zip(*(table[name].to_pylist() for name in names), strict=True))

    documents, chunks, frames = contents(DOCUMENTS), contents(CHUNKS), contents(FRAMES)
    quarantined = set(home.tables.read(corpus, QUARANTINE, columns=["doc_id"])["doc_id"].to_pylist())
    unchunked = {pair for pair in documents - chunks if pair[0] not in quarantined}
    for stage, pairs, what in (
        (CHUNKS.name, chunks - documents, "chunks of {} documents are not of the corpus's newest version"),
        (FRAMES.name, frames - documents, "frames of {} documents are not of the corpus's newest version"),
        (CHUNKS.name, unchunked, "{} documents of the newest version have no chunks"),
        (FRAMES.name, chunks - frames, "the chunks of {} documents have no frames"),
    ):
        if pairs:
            raise IndexBuildError(
                what.format(len(pairs)),
                where=", ".join(sorted(doc_id for doc_id, _ in pairs)[:5]),
                do=f"run the stage {stage} again, for every shard where the corpus has shards",
            )


def _kept_build(home: Home, plan: _Plan) -> Manifest | None:
    """Return the newest complete build of the same version and settings whose own checks passed and that verifies."""
    for manifest in reversed(folders.complete_builds(home, plan.corpus)):
        own_failed = any(
            check.blocking and not check.passed for check in manifest.checks if check.name in index_checks.OWN
        )
        if manifest.build.startswith(plan.prefix) and not own_failed:
            try:
                return manifests.verify(folders.build_folder(home, plan.corpus, manifest.build))
            except GeoragError:
                continue  # damaged since: made anew under the next attempt's name
    return None


def _next_attempt(home: Home, plan: _Plan) -> int:
    used = [manifest.build for manifest in folders.complete_builds(home, plan.corpus)]
    used += [tag.removeprefix("build-") for tag in home.tables.tags(plan.corpus, CHUNKS)]
    used += [path.name for path in home.builds_folder(plan.corpus).glob(f"{plan.prefix}*")]
    return 1 + max((int(name.rsplit("-", 1)[1]) for name in used if name.startswith(plan.prefix)), default=0)


def _make(home: Home, plan: _Plan, upstream: Sequence[CheckResult], evaluated: bool) -> Manifest:
    build = f"{plan.prefix}{_next_attempt(home, plan)}"
    builds = home.builds_folder(plan.corpus)
    staging = builds / f"{folders.STAGING}{build}"
    try:
        builds.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
        # Started ahead: it imports the engine while the tables are read.
        with WriterProcess() as process:
            manifest = _fill(home, plan, build, staging, upstream, evaluated, process)
        staging.rename(builds / build)
        files.sync(builds)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskSpaceError(
                "the disk is full: the index build was given up", where=str(staging), do="free space and run again"
            ) from error
        if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise IndexBuildError(
                "the builds folder cannot be written", where=str(builds), found=os.strerror(error.errno)
            ) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return manifest


def _fill(
    home: Home,
    plan: _Plan,
    build: str,
    staging: Path,
    upstream: Sequence[CheckResult],
    evaluated: bool,
    process: WriterProcess,
) -> Manifest:
    seconds: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(step: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[step], clock = round(now - clock, 3), now

    unfit = unfit_chunks(home, plan.corpus)
    names = ["chunk_id", "embedded_sha256", "token_count"]
    chunks = home.tables.read(plan.corpus, CHUNKS, columns=names, snapshot_id=plan.snapshots[CHUNKS.name])
    if unfit:
        chunks = chunks.filter(pc.invert(pc.is_in(chunks["chunk_id"], value_set=pa.array(sorted(unfit)))))
    if not chunks.num_rows:
        raise IndexBuildError(f"corpus {plan.corpus} has no chunk to index", do="see its quarantine")
    look_up = vector_reader(home, plan.corpus, plan.vector_set)
    other = difference(home, plan.corpus, plan.identity, plan.snapshots, unfit)
    lap("read")
    summary = _write(home, plan, staging, look_up, unfit, chunks, other, process)
    lap("write")
    ids = chunks["chunk_id"].to_pylist()
    vectors = look_up(chunks["embedded_sha256"].to_pylist())
    search, results = _checked(staging, plan, ids, vectors, whole=other is None)
    lap("check")
    rate = texts_per_second(home, plan.corpus, plan.vector_set)
    texts = len(pc.unique(chunks["embedded_sha256"]))
    manifest = Manifest(
        corpus=plan.corpus,
        build=build,
        corpus_version=plan.corpus_version,
        identity=plan.identity,
        created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        counts={
            "points": summary.points,
            "chunks": len(ids),
            "texts": texts,
            "unfit": len(unfit),
            "indexed_vectors": summary.indexed_vectors,
            "segments": summary.segments,
            REPLACED: other.replaced if other else 0,
        },
        base=other.base.build if other else None,
        # The plan as this build's sweep settled it; the identity is over the one asked for.
        settings={**plan.settings, "plan": asdict(search)},
        snapshots=plan.snapshots,
        seconds={**seconds, **{f"engine_{step}": value for step, value in summary.seconds.items()}},
        footprint_bytes=footprint_bytes(summary.points, plan.engine),
        rebuild_seconds=round(sum(seconds.values()) + (texts / rate if rate else 0.0), 1),
        needs_evaluation=evaluated,
        checks=(*upstream, *results),
    )
    return manifests.seal(staging, manifest)


def _write(
    home: Home,
    plan: _Plan,
    staging: Path,
    look_up: Callable[[Sequence[str]], NDArray[np.float32]],
    unfit: frozenset[str],
    chunks: pa.Table,
    other: Difference | None,
    process: WriterProcess,
) -> EngineSummary:
    """Stream the points to the engine's child process and, on their way, into the build's columns.

    Where an earlier build is continued, only what is other streams.
    """
    columns = ColumnsWriter(staging / COLUMNS)
    takeover = None
    if other is not None:
        version = {"corpus_version": plan.corpus_version}
        with Columns.open(other.folder / COLUMNS) as earlier:
            columns.carry(earlier, other.gone, version)
        takeover = Takeover(other.folder / ENGINE, other.gone, version)
    points = point_batches(
        home.tables,
        plan.corpus,
        plan.corpus_version,
        look_up,
        snapshots=plan.snapshots,
        only=(lambda chunk_id: chunk_id not in unfit) if unfit else None,
        chunk_ids=sorted(other.written) if other else None,
    )

    def finish_columns() -> None:
        columns.write_geometries(geometry_batches(home.tables, plan.corpus, snapshots=plan.snapshots))
        columns.finish()

    return write_engine(
        staging / ENGINE,
        plan.engine,
        columns.observing(points),
        expected_points=chunks.num_rows,
        # Text and context, about five bytes a token each, kept once in the payload.
        expected_payload_bytes=10 * int(pc.sum(chunks["token_count"]).as_py() or 0),
        takeover=takeover,
        process=process,
        meanwhile=finish_columns,
    )


def _checked(
    staging: Path, plan: _Plan, ids: Sequence[str], vectors: NDArray[np.float32], *, whole: bool
) -> tuple[PlanSettings, tuple[CheckResult, ...]]:
    """Open the staged folder as a reader would, settle how it is searched, and run every check on it."""
    files.reserve_for_opening(staging / ENGINE)
    store = EmbeddedStore.open(staging / ENGINE)
    try:
        with Columns.open(staging / COLUMNS) as columns:
            expected = dict(zip(ids, vectors, strict=True))
            search = settle_plan(store, columns, vectors, ids, plan.search)
            return search, (
                index_checks.points_equal_chunks(store, columns, expected, search),
                index_checks.every_point_names_its_source(store, columns, plan.corpus_version),
                index_checks.spatial_filter_is_indexed(store, columns, search),
                # What the plan is worth was measured when the engine that this one continues was written whole.
                index_checks.filtered_recall(store, columns, vectors, ids, search, without_plan=whole),
            )
    finally:
        store.close()


def _report(manifest: Manifest, *, reused: bool, seconds: Mapping[str, float]) -> StageReport:
    checks = tuple(check for check in manifest.checks if check.name in index_checks.OWN)
    return StageReport(
        corpus=manifest.corpus,
        stage=STAGE,
        data_version=manifest.build.rsplit("-", 1)[0],
        counts={
            "new": 0 if reused else manifest.counts["points"],
            "reused": manifest.counts["points"] if reused else 0,
            "points": manifest.counts["points"],
        },
        seconds=dict(seconds),
        checks=checks,
        metadata={
            "build": manifest.build,
            "corpus_version": manifest.corpus_version,
            "reused": reused,
            "continues": manifest.base,
            "allocated_bytes": manifest.allocated_bytes,
            "apparent_bytes": manifest.apparent_bytes,
            "footprint_bytes": manifest.footprint_bytes,
            "rebuild_seconds": manifest.rebuild_seconds,
            "points_per_second": _rate(manifest),
            "not_yet_promotable": missing_checks(manifest),
        },
    )


def _rate(manifest: Manifest) -> float:
    write = manifest.seconds.get("write", 0.0)
    return round(manifest.counts["points"] / write, 1) if write else 0.0


# --- reading ------------------------------------------------------------------------------------------------------


class OpenBuild:
    """A build being read: its folder stays while this is open, whatever is promoted or pruned meanwhile.

    Attributes
    ----------
    store
        What answers: the build's own engine, or a server's collection that holds the same points.
    answers_from
        `embedded`, or the server.
    note
        What a reader of an answer must know of the store; None where there is nothing.
    """

    def __init__(
        self,
        manifest: Manifest,
        store: Store,
        columns: Columns,
        let_go: Callable[[], None],
        *,
        plan: PlanSettings | None = None,
        answers_from: str = "embedded",
        note: str | None = None,
    ) -> None:
        self.manifest = manifest
        self.columns = columns
        self.store = store
        self.answers_from = answers_from
        self.note = note
        self._planned = PlannedSearch(store, columns, plan or PlanSettings(**manifest.settings["plan"]))
        self._let_go = weakref.finalize(self, let_go)

    def search(
        self,
        query: DenseQuery | LexicalQuery,
        where: SearchFilter,
        limit: int,
        plan: PlanSettings | None = None,
    ) -> SearchReport:
        """Search with the filter inside; `plan` replaces the build's own settings."""
        planned = self._planned if plan is None else PlannedSearch(self.store, self.columns, plan)
        report = planned.search(query, where, limit)
        if self.note is None:
            return report
        # A store that is being changed may hold points that this build's columns do not know.
        rows = self.columns.rows_of([hit.chunk_id for hit in report.hits])
        return replace(report, hits=tuple(hit for hit, row in zip(report.hits, rows.tolist(), strict=True) if row >= 0))

    def payloads(self, ids: Sequence[str]) -> dict[str, Payload]:
        """Return payloads by chunk id; an unknown id is absent."""
        return self.store.retrieve(ids)

    def geometries(self, ids: Sequence[str]) -> NDArray[np.object_]:
        """Return geometries (EPSG:4326) by chunk id, in order; None where there is none."""
        rows = self.columns.rows_of(ids)
        found = np.full(len(rows), None, dtype=object)
        found[rows >= 0] = self.columns.geometries(rows[rows >= 0])
        return found

    def close(self) -> None:
        """Close the store and let the folder go."""
        self.store.close()
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EmbeddedBuild(OpenBuild):
    """A build that its own engine answers for, from which it can also be copied."""

    store: EmbeddedStore


def open_build(home: Home, corpus: str, build: str | None = None) -> EmbeddedBuild:
    """Open a build for reading, by default the live one.

    A build that does not verify, and a disk so full that opening would kill the process, are errors: never an empty or
    an older index instead. Where the home cannot be written the engine's files are copied to a private folder, holes
    kept, because the engine rewrites two of them at each start.

    Raises
    ------
    IndexBuildError
        Nothing is live, or the folder is not what its manifest says.
    DiskSpaceError
        Opening needs space that is not there.
    """
    folder, manifest, lock = _locked(home, corpus, build)
    try:
        engine, private = _openable(folder / ENGINE)
    except BaseException:
        lock.release()
        raise

    def let_go() -> None:
        lock.release()
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)

    try:
        return EmbeddedBuild(manifest, _open_engine(engine), Columns.open(folder / COLUMNS), let_go)
    except BaseException:
        let_go()
        raise


def open_build_elsewhere(
    home: Home,
    corpus: str,
    build: str,
    store_of: Callable[[Manifest], Store],
    *,
    plan: PlanSettings | None,
    answers_from: str,
    note: str | None,
) -> OpenBuild:
    """Open a build that another store answers for; of its folder only the columns are read.

    Raises
    ------
    IndexBuildError
        The folder is not what its manifest says.
    """
    folder, manifest, lock = _locked(home, corpus, build)
    try:
        columns = Columns.open(folder / COLUMNS)
        return OpenBuild(
            manifest, store_of(manifest), columns, lock.release, plan=plan, answers_from=answers_from, note=note
        )
    except BaseException:
        lock.release()
        raise


def _locked(home: Home, corpus: str, build: str | None) -> tuple[Path, Manifest, ReaderLock]:
    """Return a build's folder, verified and kept from deletion until the lock is released."""
    for _ in range(5):
        name = build or live_build(home, corpus)
        if name is None:
            raise IndexBuildError(f"nothing of corpus {corpus} is live", where=str(home.root), do="build it first")
        folder = folders.build_folder(home, corpus, name)
        lock = folders.lock_for_reading(folder)
        if lock is not None:
            break
        if build is not None or (not folder.exists() and live_build(home, corpus) == name):
            raise IndexBuildError(f"build {name} is not there", where=str(folder))
    else:
        raise IndexBuildError("the live build was replaced five times while it was opened", where=corpus)
    try:
        return folder, manifests.verify(folder, deep=False), lock
    except BaseException:
        lock.release()
        raise


def _open_engine(folder: Path) -> EmbeddedStore:
    files.reserve_for_opening(folder)
    try:
        return EmbeddedStore.open(folder)
    except IndexBuildError as error:
        if "No space left" in str(error):
            raise DiskSpaceError("disk full: the index cannot be opened", where=str(folder), do="free space") from error
        raise


def _openable(engine: Path) -> tuple[Path, Path | None]:
    """Return the folder to open, and the private copy to delete afterwards where one had to be made."""
    if os.access(engine, os.W_OK):
        return engine, None
    private = Path(tempfile.mkdtemp(prefix="georag-build-"))
    try:
        files.room_for_copy(engine, private)
        files.copy_tree(engine, private / ENGINE)
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise
    return private / ENGINE, private
