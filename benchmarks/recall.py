"""Filtered recall at 50 k points against NumPy: with the plan, by the graph alone, and with the plan off.

What belongs here: the sweep over real sentences, where place and meaning go together, do not, and go apart. What does
not: the sweep's own code (`georag_assets.index.recall`), the rate of a build (`build`).
"""

from __future__ import annotations

from benchmarks.indexes import written
from benchmarks.report import Report, run
from benchmarks.sentences import placed, sentences
from georag_assets.index.engine_writer import EngineConfig
from georag_assets.index.models import PlanSettings
from georag_assets.index.recall import FLOOR, RecallRow, RecallTable
from georag_assets.index.recall import measure as measure_recall

POINTS, QUICK_POINTS = 50_000, 4_000
# Places that follow meaning serve both the regions around a query's topic and those far from it.
SWEEPS = ((True, ("correlated", "anti-correlated")), (False, ("uncorrelated",)))


def measure(report: Report, quick: bool) -> None:
    """Build two indexes, places correlated and not, and fill the report."""
    points = sentences(QUICK_POINTS if quick else POINTS)
    per_level = 10 if quick else 50
    # The sample has a graph too, or there would be nothing to lose with the plan off.
    config = EngineConfig(points.vectors.shape[1], **({"graph_above": 0, "full_scan_threshold_kb": 1} if quick else {}))
    settings = PlanSettings()
    report.context |= {"points": len(points), "queries_per_level": per_level, "plan": str(settings)}
    for correlated, correlations in SWEEPS:
        extents = placed(points, correlated=correlated)
        with written(points, extents, config) as index:
            asked = {"correlations": correlations, "per_level": per_level}
            given = index.store, index.columns, points.vectors, index.ids
            planned = measure_recall(*given, settings=settings, **asked)  # type: ignore[arg-type]
            by_graph = measure_recall(
                *given,
                settings=PlanSettings(exact_limit=0, ids_limit=0),
                **asked,  # type: ignore[arg-type]
            )
            _add(report, planned, by_graph)


def _add(report: Report, planned: RecallTable, by_graph: RecallTable) -> None:
    for row, graph in zip(planned.rows, by_graph.rows, strict=True):
        name = f"recall@{planned.k}, {_name(row)}"
        if row.recall is None or row.recall_off is None or row.ms_off is None or graph.recall is None:
            report.add(name, None, row.skipped, "skipped", None)
            continue
        share = "exact" if row.exact == row.queries else f"{row.exact} of {row.queries} exact"
        how = f"{row.passing:,.0f} points, {row.plans} ({share}), {row.ms:.1f} ms"
        report.at_least(f"{name}: {how}", FLOOR, row.recall, "")
        by_graph_alone = f"exact switched off (ACORN, ef {PlanSettings().ef})"
        report.compare(f"{name}: {by_graph_alone}, {graph.ms:.1f} ms", graph.recall, "")
        report.compare(f"{name}: plan off, {row.ms_off:.1f} ms", row.recall_off, "")
    report.compare(f"searches that had to be asked again exactly ({planned.rows[-1].correlation})", _again(planned), "")
    report.compare("the same with exact switched off", _again(by_graph), "")


def _name(row: RecallRow) -> str:
    return f"{row.correlation} {row.level:.1%}" if row.level is not None else "unfiltered"


def _again(table: RecallTable) -> int:
    return sum(row.asked_again for row in table.rows)


if __name__ == "__main__":
    run("recall", measure, packages=("qdrant-edge-py", "numpy", "shapely"))
