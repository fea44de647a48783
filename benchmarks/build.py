"""How fast an index is written without embedding, what was tried, and how much memory 100 k chunks take.

What belongs here: rates, the table of settings, peak memory. What does not: filtered recall level by level (`recall`).
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.indexes import Index, written
from benchmarks.report import Report, run
from benchmarks.sentences import Sentences, placed, sentences
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.models import DenseQuery, PlanSettings, SearchFilter
from georag_assets.index.planner import PlannedSearch
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
        report.compare("  wall / processor time of it", f"{index.seconds:.1f} / {index.cpu_s:.1f}", "s")
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
    for name, mib in _memory(QUICK_MEMORY_POINTS if quick else MEMORY_POINTS).items():
        report.at_most(name, MEMORY_MIB, mib, "MiB")


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


def _memory(count: int) -> dict[str, float]:
    """Return peak resident memory of a build, measured in a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_build_and_tell, args=(count, answers))
    process.start()
    own, child = answers.get()
    process.join()
    return {
        f"peak memory while building {count:,} chunks, the builder (its input of vectors included)": own,
        f"peak memory while building {count:,} chunks, the writer's child": child,
        f"peak memory while building {count:,} chunks, both together": own + child,
    }


def _build_and_tell(count: int, answers: multiprocessing.Queue[tuple[float, float]]) -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((count, 384), dtype=np.float32)
    words = [f"passage {number} of a long text about rivers, valleys and towns " * 4 for number in range(count)]
    points = Sentences(words, vectors, np.full((count, 4), np.nan))
    with written(points, placed(points, correlated=False), EngineConfig(384)) as index:
        search = PlannedSearch(index.store, index.columns)
        assert search.search(DenseQuery(vectors[0]), SearchFilter(), 1).hits[0].chunk_id == index.ids[0]
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answers.put((own, index.summary.peak_mib))


if __name__ == "__main__":
    run("build", measure, packages=("qdrant-edge-py", "pyarrow", "numpy"))
