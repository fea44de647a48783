"""What one changed document costs: the whole pipeline of stanford_ogm again, beside its full build.

What belongs here: full build, one document changed, put back, nothing changed. What does not: recall and build rate
(`recall`, `build`).
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import Report, data_folder, run
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.home import Home
from georag_assets.index.embedding import Embedder
from georag_assets.operations.pipeline import build_corpus
from georag_assets.reports import StageReport
from georag_assets.settings import Settings

QUICK_DOCUMENTS = 400
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
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
