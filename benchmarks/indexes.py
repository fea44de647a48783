"""One index of sentences in a temporary folder: written, opened, measured, removed.

What belongs here: what `recall` and `build` both do. What does not: their rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sentences import Sentences, batches, geometries, point_ids
from georag_assets.index.columns import Columns, ColumnsWriter
from georag_assets.index.embedded import EmbeddedStore
from georag_assets.index.engine_writer import EngineConfig, EngineSummary, write_engine


@dataclass(frozen=True)
class Index:
    """A written index and what writing it took; `cpu_s` is that of this process and the writer's child."""

    store: EmbeddedStore
    columns: Columns
    ids: list[str]
    summary: EngineSummary
    seconds: float
    cpu_s: float
    allocated_mib: float


@contextmanager
def written(
    points: Sentences,
    extents: NDArray[np.float64],
    config: EngineConfig,
    *,
    starts: NDArray[np.float64] | None = None,
) -> Iterator[Index]:
    """Write an index of sentences, timed from the first batch to a closed engine with its columns; remove it after."""
    folder = Path(tempfile.mkdtemp(prefix="georag-benchmark-"))
    try:
        ids = point_ids(len(points))
        before = os.times()
        writer = ColumnsWriter(folder / "columns")
        stream = writer.observing(batches(points, extents, ids, starts=starts))
        summary = write_engine(folder / "engine", config, stream, expected_points=len(points))
        writer.write_geometries(geometries(extents, ids))
        writer.finish()
        after = os.times()
        allocated = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
        store, columns = EmbeddedStore.open(folder / "engine"), Columns.open(folder / "columns")
        yield Index(
            store, columns, ids, summary, after.elapsed - before.elapsed, _cpu(after) - _cpu(before), allocated / 2**20
        )
        store.close()
        columns.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cpu(times: os.times_result) -> float:
    return times.user + times.system + times.children_user + times.children_system
