"""The whole chain for one corpus without Dagster: what `georag build` and benchmarks run.

What belongs here: the order of the stages, the writer lock around them, their measurements. What does not: the work
of a stage (its room), and how Dagster runs the same functions (`components`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TYPE_CHECKING

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.home import Home
from georag_assets.reports import StageReport

if TYPE_CHECKING:
    from georag_assets.index.embedding import Embedder


def go_live(home: Home, corpus: str, build: str) -> StageReport:
    """Promote a build, and make the gazetteer that the first question about a place would have to wait for."""
    from georag_assets.index.live import promote
    from georag_assets.places.gazetteer import world

    report = promote(home, corpus, build)
    started = perf_counter()
    with suppress(OSError, sqlite3.Error):  # a question makes it, or says why it cannot
        world(home)
    return replace(report, seconds={**report.seconds, "gazetteer": perf_counter() - started})


def serve_live(home: Home, declaration: CorpusDeclaration) -> StageReport:
    """Bring the live build to the Qdrant server that the settings name, as the corpus declares it.

    Raises
    ------
    SettingError
        The corpus declares `server:` and no server is set.
    """
    from georag_assets.index.server.deploy import serve

    assert declaration.server is not None
    return serve(home, declaration.name, declaration.server)


def build_corpus(
    home: Home,
    declaration: CorpusDeclaration,
    *,
    embedder: Embedder | None = None,
    allow_removal: bool = False,
    on_stage: Callable[[StageReport], None] | None = None,
) -> list[StageReport]:
    """Bring a corpus from its sources to a live index, as its one writer.

    Parameters
    ----------
    embedder
        The model to embed with; by default the one that the settings name.
    allow_removal
        Accept that a sync removes more of the corpus than its declaration allows at once.
    on_stage
        Told of each stage as it ends.

    Returns
    -------
    list
        A report per stage that ran; the last one is `blocked` where a blocking check stopped the chain, and then
        nothing after it ran and what was live still is.
    """
    from georag_assets.corpus.chunk_stage import chunk_corpus
    from georag_assets.corpus.documents import sync_documents
    from georag_assets.corpus.versions import publish_version
    from georag_assets.corpus.writer import writing
    from georag_assets.frames.stage import frame_corpus
    from georag_assets.index.builds import build_index
    from georag_assets.index.embedding_stage import embed_corpus
    from georag_assets.retrieval.evaluation import evaluate_build
    from georag_assets.tables.measurements import record

    corpus = declaration.name
    reports: list[StageReport] = []

    def build() -> str:
        return str(reports[-1].metadata["build"])

    def index_stage() -> StageReport:
        return build_index(home, declaration, embedder=embedder)

    stages: list[Callable[[], StageReport]] = [
        lambda: sync_documents(home, declaration, allow_removal=allow_removal),
        lambda: publish_version(home, declaration),
        lambda: chunk_corpus(home, declaration),
        lambda: frame_corpus(home, declaration),
        lambda: embed_corpus(home, declaration, embedder),
        index_stage,
    ]
    if declaration.evaluation is not None:
        stages.append(lambda: evaluate_build(home, declaration, build(), embedder=embedder))
    stages.append(lambda: go_live(home, corpus, build()))
    if declaration.server is not None:
        stages.append(lambda: serve_live(home, declaration))
    unrecorded: list[tuple[StageReport, datetime]] = []

    def record_what_is_new() -> None:
        if unrecorded:
            record(home.tables, corpus, *unrecorded)
            unrecorded.clear()

    with writing(home, corpus):
        try:
            for stage in stages:
                if stage is index_stage:  # a build's manifest takes over the checks of the stages before it
                    record_what_is_new()
                report = stage()
                reports.append(report)
                unrecorded.append((report, datetime.now(UTC)))
                if on_stage is not None:
                    on_stage(report)
                if report.blocked:
                    break
        finally:
            record_what_is_new()
    return reports
