"""What a change costs: one document in the whole pipeline, and a share of the documents in the index alone.

The pipeline's is stanford_ogm, changed, put back, built again unchanged, beside its full build. The index's is a made
corpus of 100,000 and 200,000 chunks in clusters: the last whole build copied with the difference applied, beside a
whole build, both with every check of a build; where the copy stops to pay is where `difference.MOST_CHANGED` belongs.

What does not belong here: recall and build rate (`recall`, `build`).
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import made_corpus
from benchmarks.report import Report, data_folder, run
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.home import Home
from georag_assets.index import difference
from georag_assets.index.embedding import Embedder
from georag_assets.index.folders import build_folder
from georag_assets.operations.pipeline import build_corpus
from georag_assets.reports import StageReport
from georag_assets.settings import Settings

QUICK_DOCUMENTS, QUICK_POINTS = 400, 3_000
POINTS = (100_000, 200_000)
SHARES = (0.0, 0.001, 0.01, 0.05, 0.1, 0.2)
ONE_CHANGED, RECALL = 5.0, 0.99
COLUMNS = {
    "id": "id",
    "title": "title",
    "text": ["title", "description"],
    "bbox": "bbox",
    "url": "url",
    "period": "temporal",
    "unreadable_period": "ignore",
}


def measure(report: Report, quick: bool) -> None:
    """Build, change, put back, and fill the report."""
    data = data_folder() / "stanford_ogm"
    folder = Path(tempfile.mkdtemp(prefix="georag-incremental-"))
    try:
        _measure(report, data, folder, QUICK_DOCUMENTS if quick else None)
        for points in (QUICK_POINTS,) if quick else POINTS:
            _add_index(report, folder / str(points), points, quick=quick)
            shutil.rmtree(folder / str(points))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _add_index(report: Report, folder: Path, points: int, *, quick: bool) -> None:
    home = Home(Settings(home=folder))
    made_corpus.fill(home, points)
    whole, full = _timed_build(home)
    size = f"{points:,} points, index alone"
    report.compare(f"{size}: whole build", full, "s")
    documents = points // made_corpus.CHUNKS_PER_DOCUMENT
    # The limits are what is measured: every share is copied.
    with _unlimited():
        for number, share in enumerate(SHARES, start=1):
            changed = max(1, round(documents * share))
            # Each from the first build on: those that were changed before are changed again.
            made_corpus.revise(home, range(changed), " revised" * number)
            copied, seconds = _timed_build(home)
            if copied.metadata["continues"] != whole.metadata["build"]:
                sys.exit(f"{size}: {changed} changed documents were built from {copied.metadata['continues']}")
            shutil.rmtree(build_folder(home, made_corpus.CORPUS.name, str(copied.metadata["build"])))
            told, percent = f"{size}: {changed:,} of {documents:,} documents changed, copy", 100 * seconds / full
            if number == 1 and not quick:
                report.at_most(f"{told}, of a whole build's {full:.1f} s", ONE_CHANGED, percent, "%")
            else:
                report.compare(f"{told}, of a whole build's {full:.1f} s", percent, "%")
            steps = ", ".join(f"{step} {took:.1f}" for step, took in copied.seconds.items() if took >= 0.05)
            report.compare(f"  {steps}", seconds, "s")
            report.at_least("  lowest filtered recall of the copy", RECALL, _lowest_recall(copied), "")


def _lowest_recall(built: StageReport) -> float:
    (check,) = (check for check in built.checks if check.name == "filtered_recall")
    return float(check.numbers["lowest_recall"])


def _timed_build(home: Home) -> tuple[StageReport, float]:
    started = time.perf_counter()
    report = made_corpus.build(home)
    seconds = time.perf_counter() - started
    if failed := [check.name for check in report.checks if not check.passed]:
        sys.exit(f"{report.metadata['build']}: failed {', '.join(failed)}")
    return report, seconds


@contextmanager
def _unlimited() -> Iterator[None]:
    limits = difference.MOST_CHANGED, difference.MOST_DRIFT
    difference.MOST_CHANGED = difference.MOST_DRIFT = 2.0  # type: ignore[misc]
    try:
        yield
    finally:
        difference.MOST_CHANGED, difference.MOST_DRIFT = limits  # type: ignore[misc]


def _measure(report: Report, data: Path, folder: Path, documents: int | None) -> None:
    with gzip.open(data / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines][:documents]
    source = folder / "docs.jsonl.gz"
    declaration = _declaration(source, data / "queries_catalogue.jsonl.gz", evaluated=documents is None)
    home = Home(Settings(home=folder / "home"))
    embedder = Embedder.load(home.settings)
    # Converting the model is once per machine, not per build: it would only flatter the ratio.
    embedder.encode(["warm"])

    def build(step: str) -> tuple[float, dict[str, StageReport]]:
        started = time.perf_counter()
        done = build_corpus(home, declaration, embedder=embedder)
        seconds = time.perf_counter() - started
        if done[-1].blocked or done[-1].stage != "live_index":
            failed = [check.name for check in done[-1].checks if not check.passed]
            sys.exit(f"{step}: stage {done[-1].stage} is blocked by {', '.join(failed)}")
        stages = {one.stage: one for one in done}
        report.context[f"{step}_seconds"] = {name: round(sum(one.seconds.values()), 2) for name, one in stages.items()}
        return seconds, stages

    _write(source, records)
    full, first = build("full")
    original = records[len(records) // 2]
    records[len(records) // 2] = {**original, "description": original["description"] + " Resurveyed in 2026."}
    _write(source, records)
    changed, second = build("changed")
    records[len(records) // 2] = original
    _write(source, records)
    back, third = build("back")
    same, _ = build("unchanged")

    report.compare("documents", len(records), "documents")
    report.compare("full build", round(full, 1), "s")
    # On a sample the fixed costs of a run outweigh the work: the ratio is the whole set's figure.
    goal: Callable[[str, float, float, str], None] = report.at_most
    share = 100 * changed / full
    if documents is None:
        goal("one changed document, whole pipeline, of the full build's time", 5, share, "%")
    else:
        report.compare("one changed document, whole pipeline, of the full build's time", round(share, 1), "%")
    report.compare("one changed document, whole pipeline", round(changed, 2), "s")
    chunks = _chunks_of_changed(second)
    goal("texts embedded beside the changed document's", 0, max(0, _new(second, "embeddings") - chunks), "texts")
    goal("documents changed beside the changed one", 0, second["documents"].counts["changed"] - 1, "documents")
    goal("texts embedded when it is put back", 0, _new(third, "embeddings"), "texts")
    report.add(
        "the earlier version, and the earlier build, are live again",
        "yes",
        "yes" if _live(first) == _live(third) else f"{_live(first)} / {_live(third)}",
        "",
        _live(first) == _live(third),
    )
    report.compare("put back, whole pipeline", round(back, 2), "s")
    report.compare("nothing changed, whole pipeline", round(same, 2), "s")


def _new(stages: dict[str, StageReport], stage: str) -> int:
    return stages[stage].counts["new"]


def _chunks_of_changed(stages: dict[str, StageReport]) -> int:
    return stages["chunks"].counts["new"]


def _live(stages: dict[str, StageReport]) -> tuple[object, object]:
    live = stages["live_index"].metadata
    return live["corpus_version"], live["build"]


def _declaration(source: Path, queries: Path, *, evaluated: bool) -> CorpusDeclaration:
    attributes: dict[str, Any] = {
        "name": "stanford_ogm",
        "sources": [{"path": str(source), "columns": COLUMNS}],
        "licence": "CC0-1.0",
        "unit": "document",
    }
    if evaluated:
        attributes["evaluation"] = {"queries": str(queries)}
    return CorpusDeclaration.model_validate(attributes)


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as lines:
        lines.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


if __name__ == "__main__":
    run("incremental", measure, packages=("qdrant-edge-py", "openvino", "pyiceberg"))
