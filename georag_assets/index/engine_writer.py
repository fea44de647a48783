"""Writing an engine folder in a process of its own, fed over a pipe.

What belongs here: the pre-check of free space, the child that upserts, optimises and closes, the reading of its death.
What does not: which points (`points`), where the folder lies and when it becomes a build (`builds`).

The engine's memory-mapped writes kill their process on a full disk (SIGBUS, no exception), hence the child. It dies
with its parent, and it finishes only what was sent whole: after the Arrow stream the parent sends an end mark; a stream
that just ends leaves an unfinished folder, which no manifest will name.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from georag_assets.errors import DiskSpaceError, IndexBuildError
from georag_assets.index import files
from georag_assets.index.batch import points_schema, refuse_bad_vectors, vectors_of
from georag_assets.index.payload import INDEXED, PAYLOAD

SPACE_MARGIN = 2.5  # While it optimises, the engine holds the old segments and the new ones.
_END = b"END"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine is written; part of a build's identity.

    Attributes
    ----------
    graph_above
        Points up to which no graph is built: the planner answers those exactly anyway.
    full_scan_threshold_kb
        The engine's own exact threshold, by its estimate; the planner does not rely on it.
    segments
        One segment is one graph: best recall for a beam, and nothing to merge.
    """

    dimension: int
    m: int = 16
    ef_construct: int = 100
    graph_above: int = 30_000
    full_scan_threshold_kb: int = 10_000
    segments: int = 1
    threads: int = 0
    upsert_rows: int = 500


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """What the child did: counts, wall time by step, peak memory of the child."""

    points: int
    indexed_vectors: int
    segments: int
    seconds: Mapping[str, float]
    peak_mib: float
    payload_bytes: int


def footprint_bytes(points: int, config: EngineConfig, payload_bytes: int = 0) -> int:
    """Return the space that vectors, graph and payload will take: n * dim * 4 + n * m * 2 * 4 + payload."""
    return points * config.dimension * 4 + points * config.m * 2 * 4 + payload_bytes


def check_space(folder: Path, points: int, config: EngineConfig, payload_bytes: int = 0) -> None:
    """Raise `DiskSpaceError` where free space does not cover the footprint with its margin."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    needed = int(footprint_bytes(points, config, payload_bytes) * SPACE_MARGIN)
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskSpaceError(
            f"too little free space for an index of {points} points",
            where=str(folder),
            expected=f"{needed / 2**20:.0f} MiB",
            found=f"{free / 2**20:.0f} MiB",
            do="free space, or move GEORAG_HOME",
        )


@dataclass(frozen=True, slots=True)
class Takeover:
    """An earlier engine that is continued: its folder, the points to delete, payload values for all that stay."""

    folder: Path
    gone: tuple[str, ...]
    payload: Mapping[str, str]


class WriterProcess:
    """The child process that writes one engine; started ahead, it imports the engine while its parent still reads.

    A context manager: leaving it ends a child that was given nothing, or not everything.
    """

    def __init__(self) -> None:
        # Closed in `__exit__`.
        self._complaints, self._answer = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "georag_assets.index.engine_writer", str(os.getpid())]
        # The child imports what this process imports, installed or not.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._child = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=self._answer, stderr=self._complaints, env=environment
        )

    def send(
        self, folder: Path, config: EngineConfig, batches: Iterable[pa.RecordBatch], takeover: Takeover | None
    ) -> None:
        """Send everything; the child goes on to optimise and close what it has written."""
        pipe = cast("BinaryIO", self._child.stdin)
        with suppress(BrokenPipeError):  # The child's death is read from its status, in `finished`.
            _send(pipe, folder, config, batches, takeover)
        with suppress(BrokenPipeError):
            pipe.close()

    def finished(self, folder: Path) -> EngineSummary:
        """Wait until the child has finished; its death is an `IndexBuildError`."""
        status = self._child.wait()
        if status != 0:
            self._complaints.seek(0)
            raise _death(folder, status, self._complaints.read().decode("utf-8", "replace"))
        self._answer.seek(0)
        return EngineSummary(**json.loads(self._answer.read()))

    def __enter__(self) -> WriterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        with suppress(BrokenPipeError):
            cast("BinaryIO", self._child.stdin).close()
        self._complaints.close()
        self._answer.close()


def write_engine(
    folder: Path,
    config: EngineConfig,
    batches: Iterable[pa.RecordBatch],
    *,
    expected_points: int = 0,
    expected_payload_bytes: int = 0,
    takeover: Takeover | None = None,
    process: WriterProcess | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> EngineSummary:
    """Write points to a new engine folder in a child process and wait until it is complete.

    Parameters
    ----------
    folder
        Made here; must not exist, or be empty.
    batches
        In `points.points_schema(config.dimension)`; drawn one at a time, each checked for unusable vectors.
    expected_points, expected_payload_bytes
        For the check of free space.
    takeover
        Continue a copy of an earlier engine; `batches` then holds what is other.
    process
        A child that was started ahead; without one it is started here.
    meanwhile
        Work of this process that needs no engine: done while the child optimises.
    """
    check_space(folder, expected_points, config, expected_payload_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise IndexBuildError("the engine's folder is not empty", where=str(folder), do="build under a new name")
    if takeover is not None:
        files.copy_tree(takeover.folder, folder)
    with process or WriterProcess() as child:
        child.send(folder, config, batches, takeover)
        meanwhile()
        return child.finished(folder)


def _send(
    pipe: BinaryIO, folder: Path, config: EngineConfig, batches: Iterable[pa.RecordBatch], takeover: Takeover | None
) -> None:
    change = None if takeover is None else {"gone": takeover.gone, "payload": dict(takeover.payload)}
    pipe.write(json.dumps({"folder": str(folder), "config": asdict(config), "change": change}).encode() + b"\n")
    pipe.flush()
    with pa.ipc.new_stream(pipe, points_schema(config.dimension)) as stream:
        for batch in batches:
            refuse_bad_vectors(batch)
            stream.write_batch(batch)
    pipe.write(_END)
    pipe.flush()


def _death(folder: Path, status: int, complaint: str) -> IndexBuildError:
    free = f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB free"
    if status < 0:
        name = signal.Signals(-status).name
        full = -status == signal.SIGBUS
        do = "free space and run again" if full else "see the system's log (out of memory?) and run again"
        return IndexBuildError(f"the engine's writer was killed by {name}", where=str(folder), found=free, do=do)
    last = complaint.strip().splitlines()[-1:] or ["no message"]
    return IndexBuildError(
        f"the engine's writer failed with status {status}", where=str(folder), found=f"{last[0]}; {free}"
    )


def _die_with_parent(parent: int) -> None:
    with suppress(OSError, AttributeError):  # Linux only; elsewhere the end mark alone protects.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


def _child(parent: int) -> None:
    _die_with_parent(parent)
    # Before the order comes: the parent may have started this process ahead.
    import qdrant_edge  # noqa: F401

    import georag_assets.index.embedded
    import georag_assets.index.lexical  # noqa: F401

    source = sys.stdin.buffer
    order = json.loads(source.readline())
    writer = _Writer(Path(order["folder"]), EngineConfig(**order["config"]), order["change"])
    with pa.ipc.open_stream(source) as stream:
        for batch in stream:
            writer.add(batch)
    if source.read() != _END:
        sys.exit("the stream of points ended without its end mark")
    json.dump(asdict(writer.finish()), sys.stdout)


class _Writer:
    """The engine while it is written; lives in the child."""

    def __init__(self, folder: Path, config: EngineConfig, change: Mapping[str, Any] | None) -> None:
        import qdrant_edge as engine

        from georag_assets.index.embedded import index_type
        from georag_assets.index.lexical import LexicalEmbedder
        from georag_assets.index.store import LEXICAL, TEXT

        self._engine = engine
        self._folder = folder
        self._config = config
        self._lexical = LexicalEmbedder()
        self._names = (TEXT, LEXICAL)
        self._points = 0
        self._payload_bytes = 0
        self._seconds = {"convert": 0.0, "upsert": 0.0}
        if change is not None:
            self._shard = engine.EdgeShard.load(str(folder))
            if change["gone"]:
                self._shard.update(engine.UpdateOperation.delete_points(change["gone"]))
            self._shard.update(engine.UpdateOperation.set_payload_by_filter(engine.Filter(), change["payload"]))
            self._points = self._shard.info().points_count
            return
        self._shard = engine.EdgeShard.create(str(folder), self._settings(graph=False))
        for field, kind in INDEXED.items():
            self._shard.update(engine.UpdateOperation.create_field_index(field, index_type(kind)))

    def _settings(self, *, graph: bool) -> Any:
        engine, config = self._engine, self._config
        text, lexical = self._names
        never = 2**31
        return engine.EdgeConfig(
            vectors={text: engine.EdgeVectorParams(size=config.dimension, distance=engine.Distance.Cosine)},
            sparse_vectors={lexical: engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)},
            hnsw_config=engine.HnswIndexConfig(
                m=config.m,
                ef_construct=config.ef_construct,
                full_scan_threshold=config.full_scan_threshold_kb,
                max_indexing_threads=config.threads,
                payload_m=0,
            ),
            optimizers=engine.EdgeOptimizersConfig(
                default_segment_number=config.segments,
                indexing_threshold=1 if graph else never,
                max_segment_size=never,
            ),
            wal_enabled=False,
        )

    def add(self, batch: pa.RecordBatch) -> None:
        engine = self._engine
        text, lexical = self._names
        started = time.perf_counter()
        self._payload_bytes += sum(batch.column(field.name).nbytes for field in PAYLOAD)
        vectors = vectors_of(batch).tolist()  # The binding takes a list in half the time of an array.
        ids = batch.column("chunk_id").to_pylist()
        words = batch.column("lexical_text").to_pylist()
        payloads = batch.select([field.name for field in PAYLOAD]).to_pylist()
        points = []
        for chunk_id, payload, said, vector in zip(ids, payloads, words, vectors, strict=True):
            named: dict[str, Any] = {text: vector}
            sparse = self._lexical.document(said or "")
            if sparse.indices:
                named[lexical] = sparse
            kept = {name: value for name, value in payload.items() if value is not None}
            points.append(engine.Point(chunk_id, named, kept))
        converted = time.perf_counter()
        rows = self._config.upsert_rows
        for start in range(0, len(points), rows):
            self._shard.update(engine.UpdateOperation.upsert_points(points[start : start + rows]))
        self._points += len(points)
        self._seconds["convert"] += converted - started
        self._seconds["upsert"] += time.perf_counter() - converted

    def finish(self) -> EngineSummary:
        """Flush, optimise, close; load once, because the first load rewrites a file; read the counts; close."""
        engine = self._engine
        started = time.perf_counter()
        self._shard.flush()
        self._shard.close()
        flushed = time.perf_counter()
        graph = self._points > self._config.graph_above
        shard = engine.EdgeShard.load(str(self._folder), self._settings(graph=graph))
        shard.optimize()
        shard.flush()
        shard.close()
        optimised = time.perf_counter()
        shard = engine.EdgeShard.load(str(self._folder))
        info = shard.info()
        shard.close()
        self._seconds |= {
            "flush": flushed - started,
            "optimise": optimised - flushed,
            "load": time.perf_counter() - optimised,
        }
        return EngineSummary(
            points=info.points_count,
            indexed_vectors=info.indexed_vectors_count,
            segments=info.segments_count,
            seconds={step: round(value, 3) for step, value in self._seconds.items()},
            peak_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            payload_bytes=self._payload_bytes,
        )


if __name__ == "__main__":
    _child(int(sys.argv[1]))
