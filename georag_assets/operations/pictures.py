"""What an asset's page shows beside its numbers: a map of extents, a histogram, a sample, how a number has moved.

What belongs here: which pictures a stage has, from the tables as they are after it. What does not: drawing
(`drawing`), and how Dagster lays metadata out (`components.results`). A picture reads a few columns of one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import shapely

from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.corpus.period import format_instant
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.operations import drawing
from georag_assets.reports import StageReport
from georag_assets.tables.iceberg import TableSpec
from georag_assets.tables.measurements import MEASUREMENTS

Pictures = dict[str, str]
"""Name of the metadata entry -> Markdown."""

_SAMPLE_ROWS, _CELL = 5, 48
_TREND_RUNS = 40
_EDGES = ("west", "south", "east", "north")
# The measurement of each stage whose history is worth a look.
_TRENDS = {
    "documents": "documents",
    "corpus_version": "documents",
    "chunks": "truncated_share.tokens",
    "frames": "every_frame_has_evidence.unresolved_share",
    "embeddings": "chunks",
    "index_build": "filtered_recall.lowest_recall",
    "evaluation": "recall_not_below_live.recall_at_k",
    "live_index": "points",
}


def pictures(home: Home, report: StageReport) -> Pictures:
    """Return the pictures of a stage's page; what there is nothing to draw of is left out."""
    shown: Pictures = {}
    for draw in _DRAWN.get(report.stage, ()):
        shown |= draw(home, report)
    return shown | _trend(home, report)


def _document_map(home: Home, report: StageReport) -> Pictures:
    """Return a map of the geometry that documents bring along, as far as it is stated to be in degrees."""
    rows = home.tables.read(report.corpus, DOCUMENTS, columns=["geometry_wkb", "geometry_epsg"])
    shapes = rows["geometry_wkb"].to_numpy()[rows["geometry_epsg"].to_numpy() == 4326]
    bounds = shapely.bounds(shapely.from_wkb(shapes)) if len(shapes) else np.empty((0, 4))
    return _maps(bounds[np.isfinite(bounds).all(axis=1)], "documents with geometry in EPSG:4326")


def _frame_map(home: Home, report: StageReport) -> Pictures:
    rows = home.tables.read(report.corpus, FRAMES, columns=_EDGES)
    extents = np.column_stack([rows[edge].to_numpy().astype(np.float64) for edge in _EDGES])
    return _maps(extents[np.isfinite(extents).all(axis=1)], f"chunks with an extent, of {len(extents):,}")


def _maps(extents: drawing.Extents, of_what: str) -> Pictures:
    if not len(extents):
        return {}
    west, south, east, north = extents[:, 0].min(), extents[:, 1].min(), extents[:, 2].max(), extents[:, 3].max()
    words = f"{len(extents):,} {of_what}; {west:.2f} to {east:.2f} east, {south:.2f} to {north:.2f} north"
    return {"map": drawing.small_map(extents, words), "map_large": drawing.large_map(extents, words)}


def _sizes(home: Home, report: StageReport) -> Pictures:
    tokens = home.tables.read(report.corpus, CHUNKS, columns=["token_count"])["token_count"].to_numpy()
    if not len(tokens):
        return {}
    words = f"tokens of the embedded text: median {np.median(tokens):,.0f}, longest {tokens.max():,}"
    return {"sizes": drawing.bars(drawing.histogram(tokens.astype(np.float64)), words)}


def _grades(home: Home, report: StageReport) -> Pictures:
    grades, counts = np.unique(
        home.tables.read(report.corpus, FRAMES, columns=["grade"])["grade"].to_numpy().astype(str), return_counts=True
    )
    words = ", ".join(f"{grade} {count:,}" for grade, count in zip(grades, counts, strict=True))
    values = [(grade, float(count)) for grade, count in zip(grades, counts, strict=True)]
    return {"grades": drawing.bars(values, words)} if values else {}


def _document_sample(home: Home, report: StageReport) -> Pictures:
    def cells(row: Mapping[str, object]) -> list[object]:
        period = row["period_start"]
        return [row["title"], row["source"], row["geometry_epsg"], period and format_instant(float(str(period)))]

    columns = ("title", "source", "geometry_epsg", "period_start")
    return _sample(home, report, DOCUMENTS, columns, ("title", "source", "EPSG", "from"), cells)


def _chunk_sample(home: Home, report: StageReport) -> Pictures:
    columns = ("doc_id", "token_count", "embedded_text")
    return _sample(home, report, CHUNKS, columns, ("document", "tokens", "embedded text"))


def _frame_sample(home: Home, report: StageReport) -> Pictures:
    columns = ("doc_id", "epsg", "grade", "note")
    return _sample(home, report, FRAMES, columns, ("document", "EPSG", "grade", "note"))


def _sample(
    home: Home,
    report: StageReport,
    spec: TableSpec,
    columns: Sequence[str],
    titles: Sequence[str],
    cells: Callable[[Mapping[str, object]], Sequence[object]] | None = None,
) -> Pictures:
    """Return rows from all over a table's first batch as Markdown, cut to what is shown without a click."""
    first = next(iter(home.tables.batches(report.corpus, spec, columns=columns)), None)
    rows = [] if first is None else first.take(_spread(first.num_rows)).to_pylist()
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(_cell(value) for value in (cells(row) if cells else row.values()))} |")
    while len("\n".join(lines)) > drawing.INLINE_LIMIT:
        lines.pop()
    return {"sample": "\n".join(lines)} if rows else {}


def _spread(count: int) -> pa.Array:
    return pa.array(np.unique(np.linspace(0, count - 1, _SAMPLE_ROWS).astype(np.int64)))


def _cell(value: object) -> str:
    text = " ".join(str(value if value is not None else "").split())
    short = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    return short.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("`", "'")


def _classes(home: Home, report: StageReport) -> Pictures:
    by_class = report.metadata.get("by_class")
    if not isinstance(by_class, Mapping) or not by_class:
        return {}
    values = [(str(name), float(figures["recall_at_k"])) for name, figures in islice(by_class.items(), 12)]
    return {"recall_by_class": drawing.bars(values, ", ".join(f"{name} {value:.3f}" for name, value in values))}


def _trend(home: Home, report: StageReport) -> Pictures:
    """Return how the stage's main count and its time have moved over its last runs."""
    rows = home.tables.read(
        report.corpus, MEASUREMENTS, columns=["at", "kind", "name", "value", "stage"], where=("stage", [report.stage])
    ).to_pylist()
    name = _TRENDS.get(report.stage)
    counts = [row["value"] for row in sorted(rows, key=lambda row: row["at"]) if row["name"] == name]
    seconds: dict[float, float] = {}
    for row in rows:
        if row["kind"] == "seconds":
            seconds[row["at"]] = seconds.get(row["at"], 0.0) + row["value"]
    took = [seconds[at] for at in sorted(seconds)]
    drawn = [
        drawing.line(values[-_TREND_RUNS:], f"{what}, last {len(values[-_TREND_RUNS:])} runs: now {values[-1]:,.6g}")
        for what, values in ((str(name).replace("_", " ").replace(".", ": "), counts), ("seconds", took))
        if len(values) > 1
    ]
    shown = "\n\n".join(drawn)
    return {"trend": shown if len(shown) <= drawing.INLINE_LIMIT else drawn[0]} if drawn else {}


_DRAWN: Mapping[str, tuple[Callable[[Home, StageReport], Pictures], ...]] = {
    "documents": (_document_map, _document_sample),
    "chunks": (_sizes, _chunk_sample),
    "frames": (_frame_map, _grades, _frame_sample),
    "embeddings": (_sizes,),
    "index_build": (_frame_map, _sizes),
    "evaluation": (_classes,),
    "live_index": (_frame_map,),
}
