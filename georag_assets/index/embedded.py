"""The embedded store: a Qdrant engine in this process, opened read only by habit.

What belongs here: opening a build's engine folder, compiling conditions into the engine's filter, asking it. What does
not: writing it (`engine_writer`), deciding how hard to look (`planner`).

Readers never call `optimize` or `flush`: two readers that optimised doubled the points.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import qdrant_edge as engine
from numpy.typing import NDArray

from georag_assets.errors import IndexBuildError
from georag_assets.index.filter import AllOf, AnyOf, Between, CentreIn, Condition, Ids, Is
from georag_assets.index.lexical import LexicalEmbedder
from georag_assets.index.models import DenseQuery, Hit
from georag_assets.index.store import (
    LEXICAL,
    TEXT,
    Capabilities,
    Effort,
    IndexCoverage,
    Payload,
    Query,
    StoredPoint,
    StoreInfo,
    check_vector,
)

_INDEX_TYPES = {
    "keyword": engine.PayloadSchemaType.Keyword,
    "integer": engine.PayloadSchemaType.Integer,
    "float": engine.PayloadSchemaType.Float,
    "geo": engine.PayloadSchemaType.Geo,
}


def index_type(name: str) -> engine.PayloadSchemaType:
    """Return the engine's schema type of an index type named in the payload's schema."""
    return _INDEX_TYPES[name]


def compile_filter(condition: Condition | None) -> engine.Filter | None:
    """Return the engine's filter for a condition."""
    if condition is None:
        return None
    compiled = _compile(condition)
    return compiled if isinstance(compiled, engine.Filter) else engine.Filter(must=[compiled])


def _compile(condition: Condition) -> Any:
    match condition:
        case AllOf():
            return engine.Filter(must=[_compile(part) for part in condition.conditions])
        case AnyOf():
            return engine.Filter(should=[_compile(part) for part in condition.conditions])
        case Between(field, low, high, strict):
            span = engine.RangeFloat(gt=low, lt=high) if strict else engine.RangeFloat(gte=low, lte=high)
            return engine.FieldCondition(field, range=span)
        case Is(field, value):
            return engine.FieldCondition(field, match=engine.MatchValue(value))
        case CentreIn(west, south, east, north):
            corners = engine.GeoPoint(west, north), engine.GeoPoint(east, south)
            return engine.FieldCondition("location", geo_bounding_box=engine.GeoBoundingBox(*corners))
        case Ids(ids):
            return engine.HasIdCondition(set(ids))


class EmbeddedStore:
    """One build's engine; satisfies `store.Store`."""

    def __init__(self, shard: engine.EdgeShard, folder: Path, dimension: int) -> None:
        self._shard = shard
        self.folder = folder
        self._dimension = dimension
        self._lexical = LexicalEmbedder()
        self._last: tuple[Condition | None, engine.Filter | None] = (None, None)

    @classmethod
    def open(cls, folder: Path) -> EmbeddedStore:
        """Open an engine folder that `engine_writer` finished."""
        if not (folder / "edge_config.json").is_file():
            raise IndexBuildError("there is no engine in this folder", where=str(folder), expected="edge_config.json")
        try:
            shard = engine.EdgeShard.load(str(folder))
            dimension = _dimension(folder)
        except Exception as error:
            raise IndexBuildError("the engine cannot be opened", where=str(folder), found=str(error)) from error
        return cls(shard, folder, dimension)

    @property
    def dimension(self) -> int:
        """Dimension of the dense vectors."""
        return self._dimension

    @property
    def capabilities(self) -> Capabilities:
        """The engine has payload indexes and a graph."""
        return Capabilities()

    def count(self, where: Condition | None = None) -> int:
        """Count exactly the points that satisfy a condition."""
        return self._shard.count(engine.CountRequest(exact=True, filter=compile_filter(where)))

    def search(self, query: Query, where: Condition | None, limit: int, effort: Effort) -> list[Hit]:
        """Return the best hits, best first; the condition is part of the vector query."""
        if isinstance(query, DenseQuery):
            nearest = engine.Query.Nearest(cast("Any", check_vector(query.vector, self._dimension)), using=TEXT)
        else:
            words = self._lexical.query(query.text)
            if not words.indices:
                return []
            nearest = engine.Query.Nearest(words, using=LEXICAL)
        params = engine.SearchParams(
            exact=effort.exact,
            hnsw_ef=effort.ef or None,
            acorn=engine.AcornSearchParams(enable=True, max_selectivity=1.0) if effort.acorn else None,
        )
        request = engine.QueryRequest(limit=limit, query=nearest, filter=self._filter(where), params=params)
        return [Hit(str(point.id), float(point.score)) for point in self._shard.query(request)]

    def _filter(self, where: Condition | None) -> engine.Filter | None:
        """Return the engine's filter; that of the last condition is kept, because ten thousand ids take 10 ms."""
        condition, compiled = self._last
        if condition is not where:
            compiled = compile_filter(where)
            self._last = (where, compiled)
        return compiled

    def retrieve(self, ids: Sequence[str], fields: Iterable[str] | None = None) -> dict[str, Payload]:
        """Return payloads by id; an unknown id is absent."""
        selector: Any = True if fields is None else list(fields)
        records = self._shard.retrieve(list(ids), with_payload=selector, with_vector=False)
        return {str(record.id): record.payload or {} for record in records}

    def vectors(self, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return dense vectors by id; a point without one is absent."""
        found: dict[str, NDArray[np.float32]] = {}
        for record in self._shard.retrieve(list(ids), with_payload=False, with_vector=[TEXT]):
            named = cast("dict[str, list[float]]", record.vector or {})
            if TEXT in named:
                found[str(record.id)] = np.asarray(named[TEXT], dtype=np.float32)
        return found

    def points(self, ids: Sequence[str]) -> list[StoredPoint]:
        """Return whole points by id, as another store takes them; an unknown id is absent."""
        found = []
        for record in self._shard.retrieve(list(ids), with_payload=True, with_vector=True):
            named = cast("dict[str, Any]", record.vector or {})
            sparse = named.get(LEXICAL)
            terms = None if sparse is None else (sparse.indices, sparse.values)
            found.append(StoredPoint(str(record.id), named[TEXT], terms, record.payload or {}))
        return found

    def info(self) -> StoreInfo:
        """Return the engine's counts."""
        info = self._shard.info()
        return StoreInfo(info.points_count, info.indexed_vectors_count, info.segments_count)

    def index_coverage(self) -> dict[str, IndexCoverage]:
        """Return every payload index as the engine states it."""
        names = {str(schema): name for name, schema in _INDEX_TYPES.items()}
        return {
            field: IndexCoverage(names.get(str(index.data_type), str(index.data_type)), index.points)
            for field, index in self._shard.info().payload_schema.items()
        }

    def close(self) -> None:
        """Release files and memory."""
        self._shard.close()


def _dimension(folder: Path) -> int:
    config = json.loads((folder / "edge_config.json").read_text(encoding="utf-8"))
    return int(config["vectors"][TEXT]["size"])
