"""How fast an index is written without embedding, what was tried, and how much memory 100 k chunks take.

What belongs here: rates, the table of settings, peak memory. What does not: filtered recall level by level (`recall`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.indexes import Index, written
from benchmarks.made_corpus import peak_memory
from benchmarks.report import Report, run
from benchmarks.sentences import Sentences, placed, sentences
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.models import DenseQuery, PlanSettings
from georag_assets.index.recall import FLOOR
from georag_assets.index.recall import measure as measure_recall
from georag_assets.index.store import Effort

POINTS, QUICK_POINTS = 50_000, 4_000
MEMORY_POINTS, QUICK_MEMORY_POINTS = 100_000, 8_000
RATE, QUICK_RATE = 2_000.0, 300.0  # A sample pays the child's start of a second or two.
MEMORY_MIB = 2_048.0


@dataclass(frozen=True)
class Tried:
    """A setting beside the one that ships."""

    name: str
    config: EngineConfig


def measure(report: Report, quick: bool) -> None:
    """Build with the shipped settings, then with each other one, and fill the report."""
    points = sentences(QUICK_POINTS if quick else POINTS)
    extents = placed(points, correlated=True)
    shipped = EngineConfig(points.vectors.shape[1], **({"graph_above": 0} if quick else {}))
    report.context |= {"points": len(points), "shipped": str(shipped), "load_at_start": os.getloadavg()[0]}
    with written(points, extents, shipped) as index:
        rate = len(points) / index.seconds
        report.at_least("index build without embedding", QUICK_RATE if quick else RATE, rate, "points/s")
        report.compare("  wall time of it", index.seconds, "s")
        cores = os.cpu_count() or 1
        report.compare(f"  processor time of it (over {cores} cores: {index.cpu_s / cores:.1f} s)", index.cpu_s, "s")
        for step, seconds in index.summary.seconds.items():
            report.compare(f"  of it {step}, in the writer", seconds, "s")
        report.compare("  allocated on disk", index.allocated_mib, "MiB")
        table = measure_recall(
            index.store, index.columns, points.vectors, index.ids, correlations=("correlated",), per_level=20
        )
        report.at_least("recall@10 of that build, unfiltered", FLOOR, table.baseline, "")
        report.at_least("recall@10 of that build, lowest filtered level", FLOOR, table.lowest, "")
    for tried in _others(shipped, quick):
        with written(points, extents, tried.config) as index:
            by_default, wide = _graph_recall(index, points, 0), _graph_recall(index, points, PlanSettings().ef)
            report.compare(
                f"tried: {tried.name}; recall unfiltered {by_default:.3f} (ef default), {wide:.3f} (ef "
                f"{PlanSettings().ef}); {index.cpu_s:.0f} s of processor, {index.allocated_mib:.0f} MiB",
                len(points) / index.seconds,
                "points/s",
            )
    count = QUICK_MEMORY_POINTS if quick else MEMORY_POINTS
    peak = peak_memory(count)
    report.at_most(f"peak memory of a whole index build of {count:,} chunks", MEMORY_MIB, peak["both_mib"], "MiB")
    report.compare("  highest of the building process, tables and checks included", peak["own_mib"], "MiB")
    report.compare("  highest of its writer, mapped files included", peak["writer_mib"], "MiB")
    report.compare("  time of that build, checks included", peak["seconds"], "s")


def _others(shipped: EngineConfig, quick: bool) -> list[Tried]:
    tried = [
        Tried("as shipped (m 16, ef_construct 100, one segment, all cores)", shipped),
        Tried("m 8", replace(shipped, m=8)),
        Tried("m 32", replace(shipped, m=32)),
        Tried("ef_construct 50", replace(shipped, ef_construct=50)),
        Tried("ef_construct 200", replace(shipped, ef_construct=200)),
        Tried("two segments", replace(shipped, segments=2)),
        Tried("one thread", replace(shipped, threads=1)),
        Tried("upserts of 100", replace(shipped, upsert_rows=100)),
        Tried("upserts of 5,000", replace(shipped, upsert_rows=5_000)),
        Tried("no graph at all (every search exact)", replace(shipped, graph_above=2**40)),
    ]
    return tried[1::3] if quick else tried


def _graph_recall(index: Index, points: Sentences, ef: int) -> float:
    """Return unfiltered recall@10 by the graph with a beam, over 100 queries near the points."""
    random = np.random.default_rng(5)
    queries = points.vectors[random.integers(0, len(points), 100)]
    noise = random.normal(size=queries.shape)
    queries = queries + 0.5 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    found = 0
    for query in queries.astype(np.float32):
        scores = points.vectors @ query
        best = {index.ids[row] for row in np.argpartition(-scores, 10)[:10].tolist()}
        hits = index.store.search(DenseQuery(query), None, 10, Effort(exact=False, ef=ef))
        found += len(best & {hit.chunk_id for hit in hits})
    return found / 1_000


if __name__ == "__main__":
    run("build", measure, packages=("qdrant-edge-py", "pyarrow", "numpy"))
