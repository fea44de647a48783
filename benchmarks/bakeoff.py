"""Which engine, with which settings, answers a search in a region: the table that the defaults are chosen from.

What belongs here: the planner's figures at 50 k and 200 k points, the grid of settings, the peers' rows. What does not:
cases and truth (`filtered_cases`), other engines (`peers`), one changed document (`incremental`).

The grid changes one setting at a time from the shipped ones; each variant is built and searched in a process of its
own, whose resident memory is then the variant's.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.filtered_cases import (
    CORRELATIONS,
    LEVELS,
    Case,
    Figures,
    Searcher,
    cases,
    measured,
    period_cases,
    perturbed,
    queries,
)
from benchmarks.indexes import written
from benchmarks.report import Report, run
from benchmarks.sentences import Sentences, batches, placed, point_ids, sentences
from georag_assets.index.batch import vectors_of
from georag_assets.index.embedded import EmbeddedStore, index_type
from georag_assets.index.engine_writer import EngineConfig, footprint_bytes
from georag_assets.index.filter import payload_condition
from georag_assets.index.models import DenseQuery, PlanSettings
from georag_assets.index.payload import INDEXED, PAYLOAD
from georag_assets.index.planner import PlannedSearch
from georag_assets.index.recall import FLOOR, settle_plan
from georag_assets.index.store import TEXT, Effort

SIZES, QUICK_SIZES = (50_000, 200_000), (4_000,)
# p50 that a search may take, by the share of points that pass.
MOST_MS = {0.5: 60.0, 0.2: 60.0, 0.1: 25.0, 0.01: 10.0, 0.001: 10.0}
EXTENT = ("west", "south", "east", "north")
MODES: dict[str, Effort] = {
    "plain": Effort(exact=False),
    "ACORN, ef 256": Effort(exact=False, ef=256, acorn=True),
    "ACORN, ef 1024": Effort(exact=False, ef=1024, acorn=True),
    "exact": Effort(exact=True),
}


@dataclass(frozen=True)
class Variant:
    """One setting beside the shipped ones; `links` are the payload fields whose values get graph links of their own."""

    name: str
    m: int = 16
    ef_construct: int = 100
    full_scan_threshold_kb: int = 10_000
    links: tuple[str, ...] = ()
    int8: bool = False


GRID = (
    Variant("as shipped (m 16, ef_construct 100, no links, threshold 10 MB)"),
    Variant("m 8", m=8),
    Variant("m 32", m=32),
    Variant("ef_construct 50", ef_construct=50),
    Variant("ef_construct 200", ef_construct=200),
    Variant("threshold 60 MB", full_scan_threshold_kb=60_000),
    Variant("int8 beside the originals", int8=True),
    Variant("links on location", links=("location",)),
    Variant("links on location and the extent", links=("location", *EXTENT)),
)
# What at 200 k would take the most of an hour and say what 50 k says already.
LARGE_GRID = tuple(
    variant
    for variant in GRID
    if variant.name.split(" (")[0]
    in {"as shipped", "m 8", "ef_construct 50", "threshold 60 MB", "int8 beside the originals", "links on location"}
)


def measure(report: Report, quick: bool) -> None:
    """Fill the report: the planner first, then the grid, then the peers."""
    sizes = QUICK_SIZES if quick else SIZES
    per_level = 10 if quick else 30
    points = sentences(sizes[0])
    report.context |= {
        "points": f"{len(points):,} sentences of real texts; beyond them seeded perturbations of those",
        "queries_per_level": per_level,
        "load_at_start": os.getloadavg()[0],
    }
    for size in sizes:
        grown = perturbed(points, size)
        asked = queries(grown, per_level)
        _planned(report, grown, asked, quick=quick)
        placing = placed(grown, correlated=True)
        sweep = {
            (correlation, level): cases(grown, placing, correlation, level, asked)
            for correlation in ("correlated", "anti-correlated")
            for level in LEVELS
        }
        for variant in GRID[:2] if quick else GRID if size == sizes[0] else LARGE_GRID:
            _add_variant(report, grown, placing, sweep, variant, quick=quick)
        _add_peers(report, grown, placing, sweep, all_of_them=size == sizes[0])
        print(f"{size:,} points done, {time.process_time():.0f} s of processor", file=sys.stderr)


# --- the planner --------------------------------------------------------------------------------------------------


def _planned(report: Report, points: Sentences, asked: NDArray[np.float32], *, quick: bool) -> None:
    config = EngineConfig(points.vectors.shape[1], **({"graph_above": 0, "full_scan_threshold_kb": 1} if quick else {}))
    starts = np.random.default_rng(3).permutation(len(points)).astype(np.float64)
    size = f"{len(points) // 1000} k"
    for correlated in (True, False):
        extents = placed(points, correlated=correlated)
        with written(points, extents, config, starts=starts) as index:
            row_of = {chunk_id: row for row, chunk_id in enumerate(index.ids)}
            settings = settle_plan(index.store, index.columns, points.vectors, index.ids, PlanSettings())
            plan = PlannedSearch(index.store, index.columns, settings)
            off = PlannedSearch(index.store, index.columns, PlanSettings(enabled=False))
            searches = {"planner": _rows(plan, row_of), "plain engine": _rows(off, row_of)}
            if correlated:
                report.compare(f"{size}: whole index written", index.seconds, "s")
                report.compare(f"{size}: on disk, columns included", index.allocated_mib, "MiB")
                report.compare(
                    f"{size}: plan as its sweep settled it", f"ef {settings.ef}, {settings.exact_limit:,} exact", ""
                )
            names = [name for name in CORRELATIONS if (name == "uncorrelated") != correlated]
            sweeps = [
                (f"{size}, {name} {level:.1%}", level, cases(points, extents, name, level, asked))
                for name in names
                for level in LEVELS
            ]
            if correlated:
                sweeps += [
                    (f"{size}, by numbers alone {level:.1%}", level, period_cases(points, starts, level, asked))
                    for level in LEVELS
                ]
            for name, level, those in sweeps:
                _add_planned(report, name, level, those, points, searches, plan, quick=quick)


def _add_planned(
    report: Report,
    name: str,
    level: float,
    those: list[Case],
    points: Sentences,
    searches: dict[str, Searcher],
    plan: PlannedSearch,
    *,
    quick: bool,
) -> None:
    ours = measured(searches["planner"], points, those)
    plain = measured(searches["plain engine"], points, those)
    how = plan.compile(DenseQuery(those[0].query), those[0].where)
    told = f"{name}: planner ({how.plan}, {how.form}; {ours.passing:,.0f} pass)"
    report.at_least(f"{told}, recall@10", FLOOR, ours.recall, "")
    if quick:
        report.compare(f"{told}, p50 (p95 {ours.p95_ms:.1f})", ours.p50_ms, "ms")
    else:
        report.at_most(f"{told}, p50 (p95 {ours.p95_ms:.1f})", MOST_MS[level], ours.p50_ms, "ms")
    report.compare(f"{name}: plain engine search, p50 {plain.p50_ms:.1f} ms, p95 {plain.p95_ms:.1f}", plain.recall, "")


def _rows(search: PlannedSearch, row_of: dict[str, int]) -> Searcher:
    return lambda case: [row_of[hit.chunk_id] for hit in search.search(DenseQuery(case.query), case.where, 10).hits]


# --- the grid -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a variant's process found."""

    build_s: float = 0.0
    upsert_s: float = 0.0
    disk_mib: float = 0.0
    build_peak_mib: float = 0.0
    resident_mib: float = 0.0
    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)


def _add_variant(
    report: Report,
    points: Sentences,
    extents: NDArray[np.float64],
    sweep: dict[tuple[str, float], list[Case]],
    variant: Variant,
    *,
    quick: bool,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="georag-variant-"))
    try:
        found = _in_own_process(points, extents, sweep, variant, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    size = f"{len(points) // 1000} k"
    bare = footprint_bytes(len(points), EngineConfig(points.vectors.shape[1], m=variant.m)) / 2**20
    report.compare(
        f"{size}, {variant.name}: full build; {found.disk_mib:.0f} MiB on disk, {found.resident_mib:.0f} MiB resident "
        f"after all searches, {found.build_peak_mib:.0f} MiB at the peak of building; n*dim*4 + n*m*8 = {bare:.0f} MiB",
        found.build_s,
        "s",
    )
    for mode, figures in found.figures.items():
        shown = "; ".join(
            f"{correlation} " + "/".join(f"{figures[f'{correlation} {level}'].recall:.3f}" for level in LEVELS)
            for correlation in ("correlated", "anti-correlated")
        )
        p50 = "/".join(f"{figures[f'correlated {level}'].p50_ms:.1f}" for level in LEVELS)
        p95 = "/".join(f"{figures[f'correlated {level}'].p95_ms:.1f}" for level in LEVELS)
        lowest = min(one.recall for one in figures.values())
        report.compare(
            f"{size}, {variant.name}, {mode}: recall at 50/20/10/1/0.1 % {shown}; p50 {p50}, p95 {p95} ms; lowest",
            lowest,
            "",
        )


def _in_own_process(
    points: Sentences,
    extents: NDArray[np.float64],
    sweep: dict[tuple[str, float], list[Case]],
    variant: Variant,
    folder: Path,
) -> Outcome:
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()
    child = context.Process(target=_child, args=(points, extents, sweep, variant, folder, answers))
    child.start()
    told = json.loads(answers.get())
    child.join()
    if "error" in told:
        raise SystemExit(f"{variant.name}: {told['error']}")
    figures = {mode: {name: Figures(**one) for name, one in by.items()} for mode, by in told.pop("figures").items()}
    return Outcome(**told, figures=figures)


def _child(
    points: Sentences,
    extents: NDArray[np.float64],
    sweep: dict[tuple[str, float], list[Case]],
    variant: Variant,
    folder: Path,
    answers: Any,
) -> None:
    try:
        answers.put(json.dumps(_built_and_searched(points, extents, sweep, variant, folder)))
    except BaseException as error:
        answers.put(json.dumps({"error": f"{type(error).__name__}: {error}"}))


def _built_and_searched(
    points: Sentences,
    extents: NDArray[np.float64],
    sweep: dict[tuple[str, float], list[Case]],
    variant: Variant,
    folder: Path,
) -> dict[str, Any]:
    process = psutil.Process()
    ids = point_ids(len(points))
    row_of = {chunk_id: row for row, chunk_id in enumerate(ids)}
    gc.collect()
    before = process.memory_info().rss
    started = time.perf_counter()
    upserted = _write(folder, points, extents, ids, variant)
    seconds = time.perf_counter() - started
    peak = process.memory_info().rss
    disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    gc.collect()
    idle = process.memory_info().rss
    store = EmbeddedStore.open(folder)
    figures: dict[str, dict[str, Any]] = {}
    for mode, effort in MODES.items():
        search = _by_payload(store, len(points), row_of, effort)
        figures[mode] = {
            f"{correlation} {level}": asdict(measured(search, points, those))
            for (correlation, level), those in sweep.items()
        }
    resident = process.memory_info().rss - idle
    store.close()
    return {
        "build_s": seconds,
        "upsert_s": upserted,
        "disk_mib": disk / 2**20,
        "build_peak_mib": (peak - before) / 2**20,
        "resident_mib": resident / 2**20,
        "figures": figures,
    }


def _by_payload(store: EmbeddedStore, count: int, row_of: dict[str, int], effort: Effort) -> Searcher:
    def search(case: Case) -> list[int]:
        # The form that the planner would take: size classes where few pass, ranges where many do.
        form = "classes" if len(case.passing) <= 0.005 * count else "ranges"
        hits = store.search(DenseQuery(case.query), payload_condition(case.where, form=form), 10, effort)
        return [row_of[hit.chunk_id] for hit in hits]

    return search


def _write(folder: Path, points: Sentences, extents: NDArray[np.float64], ids: list[str], variant: Variant) -> float:
    """Write an engine as `engine_writer` does, with what it does not offer: links for payload fields, int8."""
    import qdrant_edge as engine

    def settings(*, graph: bool) -> Any:
        never = 2**31
        quantised = engine.ScalarQuantizationConfig(type=engine.ScalarType.Int8, quantile=0.99, always_ram=True)
        return engine.EdgeConfig(
            vectors={
                TEXT: engine.EdgeVectorParams(
                    size=points.vectors.shape[1],
                    distance=engine.Distance.Cosine,
                    quantization_config=quantised if variant.int8 else None,
                )
            },
            hnsw_config=engine.HnswIndexConfig(
                m=variant.m,
                ef_construct=variant.ef_construct,
                full_scan_threshold=variant.full_scan_threshold_kb,
                max_indexing_threads=0,
                payload_m=variant.m if variant.links else 0,
            ),
            optimizers=engine.EdgeOptimizersConfig(
                default_segment_number=1, indexing_threshold=1 if graph else never, max_segment_size=never
            ),
            wal_enabled=False,
        )

    started = time.perf_counter()
    shard = engine.EdgeShard.create(str(folder), settings(graph=False))
    parameters = {
        "keyword": engine.KeywordIndexParams,
        "integer": engine.IntegerIndexParams,
        "float": engine.FloatIndexParams,
        "geo": engine.GeoIndexParams,
    }
    for name, kind in INDEXED.items():
        schema: Any = parameters[kind](enable_hnsw=name in variant.links) if variant.links else index_type(kind)
        shard.update(engine.UpdateOperation.create_field_index(name, schema))
    names = [field.name for field in PAYLOAD]
    for batch in batches(points, extents, ids, rows=500):
        vectors = vectors_of(batch).tolist()
        payloads = batch.select(names).to_pylist()
        made = [
            engine.Point(chunk_id, {TEXT: vector}, {key: value for key, value in payload.items() if value is not None})
            for chunk_id, payload, vector in zip(batch.column("chunk_id").to_pylist(), payloads, vectors, strict=True)
        ]
        shard.update(engine.UpdateOperation.upsert_points(made))
    shard.flush()
    shard.close()
    upserted = time.perf_counter() - started
    shard = engine.EdgeShard.load(str(folder), settings(graph=True))
    shard.optimize()
    shard.flush()
    shard.close()
    return upserted


# --- the peers ----------------------------------------------------------------------------------------------------


def _add_peers(
    report: Report,
    points: Sentences,
    extents: NDArray[np.float64],
    sweep: dict[tuple[str, float], list[Case]],
    *,
    all_of_them: bool,
) -> None:
    size = f"{len(points) // 1000} k"
    makers: dict[str, Callable[..., AbstractContextManager[peers.Peer]]] = {
        "faiss": peers.faiss,
        "lancedb": peers.lancedb,
    }
    if all_of_them:
        makers["postgresql"] = peers.postgresql
    for name, maker in makers.items():
        folder = Path(tempfile.mkdtemp(prefix="georag-peer-"))
        try:
            with maker(points, extents, folder, 16, 100) as peer:
                disk = "" if peer.disk_mib is None else f"; {peer.disk_mib:.0f} MiB on disk"
                report.compare(f"{size}, peer {peer.name}: full build{disk}", peer.build_s, "s")
                for search_name, search in peer.searches.items():
                    _add_peer(report, f"{size}, peer {peer.name}, {search_name}", points, sweep, search)
        except ImportError as error:
            report.add(f"{size}, peer {name}", None, f"not installed ({error.name})", "skipped", None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _add_peer(
    report: Report, name: str, points: Sentences, sweep: dict[tuple[str, float], list[Case]], search: Searcher
) -> None:
    figures = {key: measured(search, points, those) for key, those in sweep.items()}
    shown = "; ".join(
        f"{correlation} " + "/".join(f"{figures[correlation, level].recall:.3f}" for level in LEVELS)
        for correlation in ("correlated", "anti-correlated")
    )
    p50 = "/".join(f"{figures['correlated', level].p50_ms:.1f}" for level in LEVELS)
    p95 = "/".join(f"{figures['correlated', level].p95_ms:.1f}" for level in LEVELS)
    lowest = min(one.recall for one in figures.values())
    report.compare(f"{name}: recall at 50/20/10/1/0.1 % {shown}; p50 {p50}, p95 {p95} ms; lowest", lowest, "")


if __name__ == "__main__":
    run("bakeoff", measure, packages=("qdrant-edge-py", "faiss-cpu", "lancedb", "pgserver", "numpy"))
