"""The server store: one collection, read through the same interface as an embedded build.

What belongs here: compiling conditions into the REST API's filter, asking it. What does not: filling a collection
(`collections`), deciding how hard to look (`index.planner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from georag_assets.index.filter import AllOf, AnyOf, Between, CentreIn, Condition, Ids, Is
from georag_assets.index.lexical import LexicalEmbedder
from georag_assets.index.models import DenseQuery, Hit
from georag_assets.index.server.connection import Connection
from georag_assets.index.store import (
    LEXICAL,
    TEXT,
    Capabilities,
    Effort,
    IndexCoverage,
    Payload,
    Query,
    StoreInfo,
    check_vector,
)

if TYPE_CHECKING:
    from qdrant_client import models

# Ids read at once: a vector of 384 numbers is about 4 KB of JSON.
READ_AT_ONCE = 500


def compile_filter(condition: Condition | None) -> models.Filter | None:
    """Return the REST API's filter for a condition."""
    from qdrant_client import models

    if condition is None:
        return None
    compiled = _compile(condition)
    return compiled if isinstance(compiled, models.Filter) else models.Filter(must=[compiled])


def _compile(condition: Condition) -> Any:
    from qdrant_client import models

    match condition:
        case AllOf():
            return models.Filter(must=[_compile(part) for part in condition.conditions])
        case AnyOf():
            return models.Filter(should=[_compile(part) for part in condition.conditions])
        case Between(field, low, high, strict):
            span = models.Range(gt=low, lt=high) if strict else models.Range(gte=low, lte=high)
            return models.FieldCondition(key=field, range=span)
        case Is(field, value):
            return models.FieldCondition(key=field, match=models.MatchValue(value=value))
        case CentreIn(west, south, east, north):
            box = models.GeoBoundingBox(
                top_left=models.GeoPoint(lon=west, lat=north), bottom_right=models.GeoPoint(lon=east, lat=south)
            )
            return models.FieldCondition(key="location", geo_bounding_box=box)
        case Ids(ids):
            return models.HasIdCondition(has_id=list(ids))


class ServerStore:
    """One collection of a server; satisfies `index.store.Store`."""

    def __init__(self, connection: Connection, collection: str, dimension: int) -> None:
        self.connection = connection
        self.collection = collection
        self._dimension = dimension
        self._lexical = LexicalEmbedder()
        self._last: tuple[Condition | None, models.Filter | None] = (None, None)

    @property
    def dimension(self) -> int:
        """Dimension of the dense vectors."""
        return self._dimension

    @property
    def capabilities(self) -> Capabilities:
        """A server has indexes and graphs; the client's own local mode has neither."""
        real = not self.connection.is_local_mode
        return Capabilities(payload_indexes=real, graph=real)

    def count(self, where: Condition | None = None) -> int:
        """Count exactly the points that satisfy a condition."""
        compiled = compile_filter(where)
        counted = self._call(
            "count points", lambda client: client.count(self.collection, count_filter=compiled, exact=True)
        )
        return int(counted.count)

    def search(self, query: Query, where: Condition | None, limit: int, effort: Effort) -> list[Hit]:
        """Return the best hits, best first; the condition is part of the vector query."""
        from qdrant_client import models

        asked: list[float] | models.SparseVector
        if isinstance(query, DenseQuery):
            asked, using = check_vector(query.vector, self._dimension).tolist(), TEXT
        else:
            words = self._lexical.query(query.text)
            if not words.indices:
                return []
            asked, using = models.SparseVector(indices=list(words.indices), values=list(words.values)), LEXICAL
        parameters = models.SearchParams(
            exact=effort.exact,
            hnsw_ef=effort.ef or None,
            acorn=models.AcornSearchParams(enable=True, max_selectivity=1.0) if effort.acorn else None,
            quantization=models.QuantizationSearchParams(rescore=True, oversampling=2.0),
        )
        compiled = self._filter(where)
        found = self._call(
            "answer a search",
            lambda client: client.query_points(
                self.collection,
                query=asked,
                using=using,
                query_filter=compiled,
                search_params=parameters,
                limit=limit,
                with_payload=False,
            ),
        )
        return [Hit(str(point.id), float(point.score)) for point in found.points]

    def _filter(self, where: Condition | None) -> models.Filter | None:
        """Return the compiled filter; that of the last condition is kept, because thousands of ids take long."""
        condition, compiled = self._last
        if condition is not where:
            compiled = compile_filter(where)
            self._last = (where, compiled)
        return compiled

    def retrieve(self, ids: Sequence[str], fields: Iterable[str] | None = None) -> dict[str, Payload]:
        """Return payloads by id; an unknown id is absent."""
        wanted: Any = True if fields is None else list(fields)
        found: dict[str, Payload] = {}
        for part in _parts(ids):
            records = self._call(
                "read points", lambda client, part=part: client.retrieve(self.collection, part, with_payload=wanted)
            )
            found.update((str(record.id), record.payload or {}) for record in records)
        return found

    def vectors(self, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return dense vectors by id; a point without one is absent."""
        found: dict[str, NDArray[np.float32]] = {}
        for part in _parts(ids):
            records = self._call(
                "read vectors",
                lambda client, part=part: client.retrieve(
                    self.collection, part, with_payload=False, with_vectors=[TEXT]
                ),
            )
            for record in records:
                named = cast("dict[str, list[float]]", record.vector or {})
                if TEXT in named:
                    found[str(record.id)] = np.asarray(named[TEXT], dtype=np.float32)
        return found

    def info(self) -> StoreInfo:
        """Return the server's counts; the number of points is exact, not its estimate."""
        info = self._call("describe the collection", lambda client: client.get_collection(self.collection))
        return StoreInfo(self.count(), info.indexed_vectors_count or 0, info.segments_count)

    def index_coverage(self) -> dict[str, IndexCoverage]:
        """Return every payload index as the server states it."""
        info = self._call("describe the collection", lambda client: client.get_collection(self.collection))
        return {
            field: IndexCoverage(index.data_type.value, index.points) for field, index in info.payload_schema.items()
        }

    def close(self) -> None:
        """Leave the connection open: it belongs to another."""

    def _call(self, purpose: str, ask: Any) -> Any:
        return self.connection.call(purpose, ask, collection=self.collection)


def _parts(ids: Sequence[str]) -> Iterable[list[str]]:
    for start in range(0, len(ids), READ_AT_ONCE):
        yield list(ids[start : start + READ_AT_ONCE])
