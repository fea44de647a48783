"""Small engines with their columns, made of a few arrays: what the index's own tests search in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from georag_assets.geometry.extent import extent_of
from georag_assets.geometry.shapes import normalise
from georag_assets.index.batch import make_batch
from georag_assets.index.columns import Columns, ColumnsWriter
from georag_assets.index.embedded import EmbeddedStore
from georag_assets.index.engine_writer import EngineConfig, EngineSummary, write_engine
from georag_assets.index.filter import Condition
from georag_assets.index.models import DenseQuery, PlanSettings, SearchFilter
from georag_assets.index.planner import PlannedSearch
from georag_assets.index.store import Effort


def chunk_id(number: int) -> str:
    """Return the id of a test's n-th point."""
    return str(uuid.UUID(int=number))


@dataclass(frozen=True)
class Small:
    folder: Path
    store: EmbeddedStore
    columns: Columns
    summary: EngineSummary
    geometries: Sequence[BaseGeometry | None]
    vectors: NDArray[np.float32]
    numbers: Sequence[int]

    @property
    def search(self) -> PlannedSearch:
        return PlannedSearch(self.store, self.columns)

    def planned(self, **settings: object) -> PlannedSearch:
        return PlannedSearch(self.store, self.columns, PlanSettings(**settings))  # type: ignore[arg-type]

    def numbers_of(self, where: SearchFilter, *, search: PlannedSearch | None = None) -> list[int]:
        """Return the numbers of every point that a search with this filter can find."""
        report = (search or self.search).search(DenseQuery(self.vectors[0]), where, max(len(self.numbers), 1))
        return sorted(uuid.UUID(hit.chunk_id).int for hit in report.hits)

    def ids_by(self, condition: Condition | None) -> set[str]:
        """Return the ids that the engine lets through, asked exactly for all of them."""
        hits = self.store.search(
            DenseQuery(self.vectors[0]),
            condition,
            len(self.numbers),
            Effort(),
        )
        return {hit.chunk_id for hit in hits}


def batches_of(
    geometries: Sequence[BaseGeometry | None],
    vectors: NDArray[np.float32],
    *,
    numbers: Sequence[int] | None = None,
    payload: Mapping[str, Sequence[object]] | None = None,
    texts: Sequence[str] | None = None,
    rows: int = 500,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of points with ids by number."""
    numbers = range(len(vectors)) if numbers is None else numbers
    extents = [extent_of(geometry) for geometry in geometries]
    for start in range(0, len(vectors), rows):
        part = slice(start, start + rows)
        ids = [chunk_id(number) for number in numbers[part]]
        said = list(texts[part]) if texts else [f"passage {number}" for number in numbers[part]]
        columns: dict[str, pa.Array] = {
            "chunk_id": pa.array(ids),
            "lexical_text": pa.array(said),
            "text": pa.array(said),
            "source": pa.array(["a source"] * len(ids)),
            "corpus": pa.array(["small"] * len(ids)),
            "corpus_version": pa.array(["v1-00000000"] * len(ids)),
        }
        for edge in ("west", "south", "east", "north"):
            values = [None if extent is None else getattr(extent, edge) for extent in extents[part]]
            columns[edge] = pa.array(values, pa.float64())
        for name, stated in (payload or {}).items():
            columns[name] = pa.array(list(stated[part]))
        yield make_batch(columns, vectors[part])


def geometry_batch(
    geometries: Sequence[BaseGeometry | None], numbers: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the geometries as the frames table has them: normalised."""
    numbers = range(len(geometries)) if numbers is None else numbers
    kept = [
        (chunk_id(number), shapely.to_wkb(normalise(geometry)[0]))
        for number, geometry in zip(numbers, geometries, strict=True)
        if geometry is not None
    ]
    yield pa.RecordBatch.from_pydict(
        {
            "chunk_id": pa.array([name for name, _ in kept], pa.string()),
            "geometry_wkb": pa.array([wkb for _, wkb in kept], pa.binary()),
        }
    )


def write_small(
    folder: Path,
    geometries: Sequence[BaseGeometry | None],
    vectors: NDArray[np.float32] | None = None,
    *,
    numbers: Sequence[int] | None = None,
    payload: Mapping[str, Sequence[object]] | None = None,
    texts: Sequence[str] | None = None,
    dimension: int = 8,
    **config: int,
) -> Small:
    """Write engine and columns, and open them."""
    if vectors is None:
        vectors = np.random.default_rng(7).normal(size=(len(geometries), dimension)).astype(np.float32)
    writer = ColumnsWriter(folder / "columns")
    engine_config = EngineConfig(vectors.shape[1], **config)
    batches = batches_of(geometries, vectors, numbers=numbers, payload=payload, texts=texts)
    summary = write_engine(folder / "engine", engine_config, writer.observing(batches), expected_points=len(vectors))
    writer.write_geometries(geometry_batch(geometries, numbers))
    writer.finish()
    opened = EmbeddedStore.open(folder / "engine"), Columns.open(folder / "columns")
    return Small(folder, *opened, summary, geometries, vectors, list(numbers or range(len(vectors))))
