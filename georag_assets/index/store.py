"""The small interface that every store fills, embedded or server.

What belongs here: the protocol and the records it speaks in. What does not: an engine (`embedded`), the planning of a
search (`planner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from georag_assets.errors import QueryError
from georag_assets.index.filter import Condition
from georag_assets.index.models import DenseQuery, Hit, LexicalQuery

# Names of the vectors, equal in every store.
TEXT, LEXICAL = "text", "lexical"

Payload: TypeAlias = Mapping[str, Any]
Query: TypeAlias = DenseQuery | LexicalQuery


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard the engine looks: exactly, or through the graph with a beam of `ef` (0: its default) and ACORN."""

    exact: bool = True
    ef: int = 0
    acorn: bool = False


@dataclass(frozen=True, slots=True)
class IndexCoverage:
    """A payload index as the engine states it: its type and how many points it covers."""

    index_type: str
    points: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store has to be measured: without payload indexes or a graph a check of them means nothing."""

    payload_indexes: bool = True
    graph: bool = True


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point as a store holds it: the dense vector (unit length), the terms of the lexical one, the payload."""

    chunk_id: str
    vector: Sequence[float]
    terms: tuple[Sequence[int], Sequence[float]] | None
    payload: Payload


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Counts of a store; `indexed_vectors` is 0 where the collection is too small for a graph."""

    points: int
    indexed_vectors: int
    segments: int


def check_vector(vector: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Return a query vector as float32; raise `QueryError` where the engine would answer nonsense."""
    array = np.asarray(vector, dtype=np.float32)
    if array.shape != (dimension,):
        raise QueryError("the query vector has the wrong shape", expected=f"({dimension},)", found=str(array.shape))
    if not np.isfinite(array).all() or not np.any(array):
        raise QueryError("the query vector is not finite or all zero", expected="finite, norm > 0")
    return array


class Store(Protocol):
    """A collection of points that is only read."""

    @property
    def dimension(self) -> int:
        """Dimension of the dense vectors."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What of it can be measured."""
        ...

    def count(self, where: Condition | None = None) -> int:
        """Count exactly the points that satisfy a condition."""
        ...

    def search(self, query: Query, where: Condition | None, limit: int, effort: Effort) -> list[Hit]:
        """Return the best hits; the condition is part of the vector query, never applied after it."""
        ...

    def retrieve(self, ids: Sequence[str], fields: Iterable[str] | None = None) -> dict[str, Payload]:
        """Return payloads by id; an unknown id is absent."""
        ...

    def vectors(self, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return dense vectors by id; a point without one is absent."""
        ...

    def info(self) -> StoreInfo:
        """Return the counts."""
        ...

    def index_coverage(self) -> dict[str, IndexCoverage]:
        """Return every payload index with its type and the number of points it covers."""
        ...

    def close(self) -> None:
        """Release files and memory."""
        ...
