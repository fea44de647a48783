"""Collections of a server: their names, how one is made, filled, brought to rest and given the alias.

What belongs here: every request that changes a server. What does not: which points a collection should hold and whether
it may answer (`deploy`), reading it (`store`).

A collection is `georag__<corpus>__<build>`, after the build it was first filled from; the alias `georag__<corpus>`
leads to the one that answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from georag_assets.corpus.declaration import ServerLayout
from georag_assets.errors import ServerError
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.payload import INDEXED
from georag_assets.index.server.connection import Connection
from georag_assets.index.store import LEXICAL, TEXT, StoredPoint

if TYPE_CHECKING:
    from qdrant_client import models

PREFIX = "georag__"
# A request holds so many points and so many bytes of JSON at most; a server refuses more than 32 MB.
POINTS_AT_ONCE, BYTES_AT_ONCE = 500, 8_000_000
BYTES_PER_NUMBER = 21
IDS_AT_ONCE = 2_000
# Kilobytes of vectors from which on the server builds a graph for a segment, once it may build one at all.
INDEXING_THRESHOLD_KB = 10_000
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.05, 2.0
_TOO_LARGE, _EXISTS, _UNKNOWN = 413, 409, 404


def collection_name(corpus: str, build: str) -> str:
    """Return the name of the collection that a build is copied to."""
    return f"{alias_name(corpus)}__{build}"


def alias_name(corpus: str) -> str:
    """Return the alias that leads to the collection which answers for a corpus."""
    return f"{PREFIX}{corpus}"


def create(connection: Connection, name: str, engine: EngineConfig, layout: ServerLayout) -> bool:
    """Make a collection, its payload indexes before any point; return whether it was made or found.

    Strict mode refuses a filter on a field without index. No graph is built while it is filled: see `settle`.
    """
    from qdrant_client import models

    made = _create(connection, name, engine, layout)
    schema = connection.call("describe the collection", lambda client: client.get_collection(name)).payload_schema
    for field, kind in INDEXED.items():
        if field not in schema:
            connection.call(
                f"index {field}",
                lambda client, field=field, kind=kind: client.create_payload_index(  # type: ignore[misc]
                    name, field, models.PayloadSchemaType(kind)
                ),
                collection=name,
            )
    return made


def _create(connection: Connection, name: str, engine: EngineConfig, layout: ServerLayout) -> bool:
    from qdrant_client import models

    if exists(connection, name):
        return False
    quantised = models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
    )
    try:
        connection.call(
            "make the collection",
            lambda client: client.create_collection(
                name,
                vectors_config={
                    TEXT: models.VectorParams(
                        size=engine.dimension, distance=models.Distance.COSINE, on_disk=layout.on_disk
                    )
                },
                sparse_vectors_config={
                    LEXICAL: models.SparseVectorParams(
                        modifier=models.Modifier.IDF, index=models.SparseIndexParams(on_disk=layout.on_disk)
                    )
                },
                shard_number=layout.shards,
                replication_factor=layout.replicas,
                write_consistency_factor=layout.write_consistency,
                on_disk_payload=layout.on_disk,
                hnsw_config=models.HnswConfigDiff(
                    m=engine.m,
                    ef_construct=engine.ef_construct,
                    full_scan_threshold=engine.full_scan_threshold_kb,
                    payload_m=0,
                    on_disk=layout.on_disk,
                ),
                optimizers_config=models.OptimizersConfigDiff(indexing_threshold=0),
                quantization_config=quantised if layout.quantised else None,
                strict_mode_config=models.StrictModeConfig(
                    enabled=True, unindexed_filtering_retrieve=False, unindexed_filtering_update=False
                ),
            ),
            collection=name,
        )
    except ServerError as error:
        # The first try was done and not acknowledged.
        if error.status != _EXISTS:
            raise
    return True


def exists(connection: Connection, name: str) -> bool:
    """Whether a collection is there."""
    return connection.call("look for the collection", lambda client: client.collection_exists(name), collection=name)


def drop(connection: Connection, name: str) -> None:
    """Delete a collection; one that is not there is no error."""
    connection.call("delete the collection", lambda client: client.delete_collection(name), collection=name)


def names(connection: Connection, corpus: str) -> list[str]:
    """Return the names of the collections that hold a build of a corpus, whoever made them."""
    found = connection.call("list its collections", lambda client: client.get_collections()).collections
    return sorted(item.name for item in found if item.name.startswith(f"{alias_name(corpus)}__"))


@dataclass(frozen=True, slots=True)
class Settling:
    """How long a collection took to come to rest, and what it then said of itself."""

    seconds: float
    looks: int
    indexed_vectors: int
    segments: int


def settle(connection: Connection, name: str, engine: EngineConfig, points: int) -> Settling:
    """Let the server build its graphs, where so many points have one, and wait until it rests.

    Raises
    ------
    ServerError
        An optimiser failed, or the server's patience ended without any progress: the error says what was waited for.
    """
    from qdrant_client import models

    graph = points > engine.graph_above
    threshold = INDEXING_THRESHOLD_KB if graph else 0
    connection.call(
        "set when graphs are built",
        lambda client: client.update_collection(
            name, optimizers_config=models.OptimizersConfigDiff(indexing_threshold=threshold)
        ),
        collection=name,
    )
    return _wait_until_ready(connection, name, points if graph else 0)


def _wait_until_ready(connection: Connection, name: str, graph_points: int) -> Settling:
    """Wait for green: twice in a row, because a server is green for a moment before it begins.

    What bounds the wait is not its length, which the corpus decides, but a server that shows no progress.
    """
    from qdrant_client import models

    started = progress = time.monotonic()
    seen: tuple[object, ...] = ()
    green = looks = 0
    pause = _FIRST_LOOK_S
    while True:
        info = connection.call("describe the collection", lambda client: client.get_collection(name), collection=name)
        looks += 1
        if info.status == models.CollectionStatus.RED or info.optimizer_status != models.OptimizersStatusOneOf.OK:
            raise ServerError(
                "the server's optimiser failed",
                where=f"{connection.address.url}, collection {name}",
                expected="status green, optimiser ok",
                found=f"status {info.status.value}, optimiser {str(info.optimizer_status)[:300]}",
                do="see the server's log",
            )
        indexed = info.indexed_vectors_count or 0
        green = green + 1 if info.status == models.CollectionStatus.GREEN else 0
        now = time.monotonic()
        if green == 2:
            return Settling(round(now - started, 3), looks, indexed, info.segments_count)
        queue = info.update_queue.length if info.update_queue else None
        state = (info.status, indexed, info.segments_count, queue)
        if state != seen:
            seen, progress = state, now
        elif now - progress > connection.patience_s:
            waited = f"{indexed} of {graph_points} vectors indexed" if graph_points else "nothing to index"
            raise ServerError(
                f"the collection did not become ready: no progress for {now - progress:.0f} s",
                where=f"{connection.address.url}, collection {name}",
                expected="status green",
                found=f"status {info.status.value}, {waited}, {queue or 0} updates queued",
                do="see the server's log and load; GEORAG_QDRANT_PATIENCE_S is how long is waited without progress",
            )
        if info.status == models.CollectionStatus.GREY:
            # Optimisations are due and not begun, as after a restart: any update begins them.
            connection.call(
                "begin its optimisations",
                lambda client: client.update_collection(name, optimizers_config=models.OptimizersConfigDiff()),
                collection=name,
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_LOOK_S)


def upsert(connection: Connection, name: str, points: Iterable[StoredPoint]) -> int:
    """Write points in bounded requests, each acknowledged as applied before the next is sent; return how many.

    Waiting for each is the back-pressure: the server's queue never holds more than one request of ours.
    """
    from qdrant_client import models

    written = 0
    for batch in _bounded(points):
        structs = [
            models.PointStruct(id=point.chunk_id, vector=cast("Any", _vectors(point)), payload=dict(point.payload))
            for point in batch
        ]
        _upsert(connection, name, structs)
        written += len(structs)
    return written


def _upsert(connection: Connection, name: str, structs: Sequence[models.PointStruct]) -> None:
    try:
        connection.call(
            f"store {len(structs)} points",
            lambda client: client.upsert(name, list(structs), wait=True),
            collection=name,
        )
    except ServerError as error:
        # A proxy before the server may allow less than the server.
        if error.status != _TOO_LARGE or len(structs) == 1:
            raise
        half = len(structs) // 2
        _upsert(connection, name, structs[:half])
        _upsert(connection, name, structs[half:])


def _vectors(point: StoredPoint) -> dict[str, object]:
    from qdrant_client import models

    named: dict[str, object] = {TEXT: list(point.vector)}
    if point.terms is not None:
        indices, values = point.terms
        named[LEXICAL] = models.SparseVector(indices=list(indices), values=list(values))
    return named


def _bounded(points: Iterable[StoredPoint]) -> Iterator[list[StoredPoint]]:
    batch: list[StoredPoint] = []
    size = 0
    for point in points:
        bytes_ = len(point.vector) * BYTES_PER_NUMBER + 2 * len(str(point.payload))
        if batch and (len(batch) == POINTS_AT_ONCE or size + bytes_ > BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += bytes_
    if batch:
        yield batch


def delete(connection: Connection, name: str, ids: Sequence[str]) -> None:
    """Delete points by id; one that is not there is no error."""
    from qdrant_client import models

    rest = iter(ids)
    while part := list(islice(rest, IDS_AT_ONCE)):
        connection.call(
            f"delete {len(part)} points",
            lambda client, part=part: client.delete(name, models.PointIdsList(points=part), wait=True),  # type: ignore[misc]
            collection=name,
        )


def set_version(connection: Connection, name: str, corpus_version: str) -> None:
    """Let every point that names another corpus version name this one."""
    from qdrant_client import models

    other = models.FieldCondition(key="corpus_version", match=models.MatchValue(value=corpus_version))
    connection.call(
        "name the corpus version in its points",
        lambda client: client.set_payload(
            name, {"corpus_version": corpus_version}, models.Filter(must_not=[other]), wait=True
        ),
        collection=name,
    )


def contents(connection: Connection, name: str) -> dict[str, str]:
    """Return chunk id -> content hash of every point of a collection."""
    found: dict[str, str] = {}
    offset: Any = None
    while True:
        records, offset = connection.call(
            "list its points",
            lambda client, offset=offset: client.scroll(  # type: ignore[misc]
                name, limit=IDS_AT_ONCE, offset=offset, with_payload=["content_sha256"], with_vectors=False
            ),
            collection=name,
        )
        for record in records:
            payload: Mapping[str, Any] = record.payload or {}
            found[str(record.id)] = str(payload.get("content_sha256"))
        if offset is None:
            return found


def alias_target(connection: Connection, corpus: str) -> str | None:
    """Return the collection that the corpus's alias leads to; None where there is no alias."""
    aliases = connection.call("list its aliases", lambda client: client.get_aliases()).aliases
    return next((item.collection_name for item in aliases if item.alias_name == alias_name(corpus)), None)


def swap_alias(connection: Connection, corpus: str, name: str) -> str | None:
    """Let the corpus's alias lead to a collection, in one step for readers; return where it led before."""
    from qdrant_client import models

    alias = alias_name(corpus)
    before = alias_target(connection, corpus)
    if before == name:
        return before
    steps: list[Any] = [
        models.CreateAliasOperation(create_alias=models.CreateAlias(collection_name=name, alias_name=alias))
    ]
    if before is not None:
        steps.insert(0, models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=alias)))
    connection.call("move the alias", lambda client: client.update_collection_aliases(steps), collection=name)
    return before
