"""A corpus chunked, framed and embedded in shards by processes that run at once: as if by one."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from georag_assets.corpus.chunk_stage import chunk_corpus
from georag_assets.corpus.declaration import CorpusDeclaration, load_declaration
from georag_assets.corpus.documents import sync_documents
from georag_assets.corpus.models import CHUNKS, QUARANTINE
from georag_assets.corpus.shards import Shard, shards_of
from georag_assets.corpus.versions import publish_version
from georag_assets.corpus.writer import writing
from georag_assets.errors import IndexBuildError, PromotionError
from georag_assets.frames.models import FRAMES
from georag_assets.frames.stage import frame_corpus
from georag_assets.home import Home
from georag_assets.index.builds import build_index
from georag_assets.index.embedding_stage import EMBEDDINGS, MODELS, embed_corpus
from georag_assets.index.live import promote
from georag_assets.operations.pipeline import build_corpus
from georag_assets.reports import StageReport
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets.settings import Settings
from georag_assets.tables import measurements
from georag_assets_tests.small_corpora import declare, texts

CORPUS = "field_notes"
SHARDS = shards_of(3)
STAGES: tuple[Callable[..., StageReport], ...] = (chunk_corpus, frame_corpus, embed_corpus)
# The same text in documents of several shards: shards that run at once both embed it.
DOCUMENTS = {f"{copy}_{name}": text for copy in range(4) for name, text in texts().items()} | {
    "severed.md": "# Severed\n\nSRID=4326;POLYGON ((7 47, 8 47, 8 48, 7 48))\n"
}


@pytest.fixture
def declaration(tmp_path: Path) -> CorpusDeclaration:
    """Return a corpus of 25 documents in three shards."""
    return load_declaration(
        declare(tmp_path, CORPUS, documents=DOCUMENTS, extra="  shards: 3\n  quarantine_threshold: 0.2\n") / "defs.yaml"
    )


def synced(home: Home, declaration: CorpusDeclaration) -> None:
    with writing(home, CORPUS):
        for report in (sync_documents(home, declaration), publish_version(home, declaration)):
            measurements.record(home.tables, CORPUS, (report, datetime.now(UTC)))


def run_shard(home: Home, declaration: CorpusDeclaration, shard: Shard, meet: Callable[[], Any]) -> list[StageReport]:
    reports = []
    with writing(home, CORPUS, shard):
        for stage in STAGES:
            meet()
            reports.append(stage(home, declaration, shard=shard))
            measurements.record(home.tables, CORPUS, (reports[-1], datetime.now(UTC)))
    return reports


def run_in_process(root: str, file: str, name: str, meeting: Any, outcomes: Any) -> None:
    try:
        reports = run_shard(
            Home(Settings(home=Path(root))), load_declaration(Path(file)), Shard.named(name), meeting.wait
        )
    except BaseException as error:
        meeting.abort()
        outcomes.put((name, f"{type(error).__name__}: {error}"))
        raise
    outcomes.put((name, [report.blocked for report in reports]))


def at_once(home: Home, declaration: CorpusDeclaration, shards: tuple[Shard, ...] = SHARDS) -> None:
    """Run every shard in a process of its own, each stage begun by all at the same moment."""
    context = multiprocessing.get_context("spawn")
    meeting, outcomes = context.Barrier(len(shards), timeout=120), context.Queue()
    processes = [
        context.Process(
            target=run_in_process, args=(str(home.root), str(declaration.file), shard.name, meeting, outcomes)
        )
        for shard in shards
    ]
    for process in processes:
        process.start()
    ended = dict(outcomes.get(timeout=240) for _ in processes)
    for process in processes:
        process.join()
    assert ended == {shard.name: [False, False, False] for shard in shards}


def joined(home: Home, declaration: CorpusDeclaration) -> StageReport:
    with writing(home, CORPUS):
        report = build_index(home, declaration)
        if not report.blocked:
            promote(home, CORPUS, str(report.metadata["build"]))
        return report


def rows_of(home: Home) -> dict[str, Counter[str]]:
    """Return every row of the tables that shards write, without the order, and vectors as their texts."""
    found = {}
    for spec in (CHUNKS, FRAMES, QUARANTINE, EMBEDDINGS, MODELS):
        rows = home.tables.read(CORPUS, spec).to_pylist()
        drop = ("vector", "probes", "texts_per_second")
        found[spec.name] = Counter(repr({k: v for k, v in row.items() if k not in drop}) for row in rows)
    return found


def answers(home: Home) -> list[tuple[str, str]]:
    with Retriever(home, (CORPUS,)) as retriever:
        found = retriever.search(Question("where was the weir raised after floods", place_from_words=False))
    return [(candidate.chunk_id, candidate.text) for candidate in found.candidates]


@pytest.mark.slow
def test_shards_at_once_make_what_one_run_makes(
    declaration: CorpusDeclaration, tmp_path: Path, fresh_home: Callable[[Path], Home]
) -> None:
    sharded, plain = fresh_home(tmp_path / "sharded"), fresh_home(tmp_path / "plain")
    whole = build_corpus(plain, declaration)
    assert not whole[-1].blocked
    synced(sharded, declaration)
    at_once(sharded, declaration)
    report = joined(sharded, declaration)
    assert rows_of(sharded) == rows_of(plain)
    assert report.metadata["build"] == {one.stage: one for one in whole}["index_build"].metadata["build"]
    assert {check.name for check in report.checks} == {
        check.name for one in whole if one.stage == "index_build" for check in one.checks
    }
    assert all(check.passed for check in report.checks), [check for check in report.checks if not check.passed]
    assert answers(sharded) == answers(plain)

    # The whole corpus's run finds nothing to do, and so do the shards.
    again = {one.stage: one for one in build_corpus(sharded, declaration)}
    assert [again[stage].counts["new"] for stage in ("chunks", "frames", "embeddings")] == [0, 0, 0]
    assert again["index_build"].metadata["build"] == report.metadata["build"]

    # A change of two documents is their shards' alone.
    folder = Path(str(declaration.file)).parent / "docs"
    (folder / "0_weir.md").write_text("# The weir\n\nIt was taken down in 2026.\n", encoding="utf-8")
    (folder / "1_weir.md").unlink()
    synced(sharded, declaration)
    for shard in SHARDS:
        chunks, _, embeddings = run_shard(sharded, declaration, shard, lambda: None)
        assert chunks.shard == embeddings.shard == shard.name
        assert (chunks.counts["new"] > 0) == shard.holds("docs/0_weir.md")
    joined(sharded, declaration)
    build_corpus(plain, declaration)
    assert rows_of(sharded) == rows_of(plain)


def test_an_index_without_every_shard_is_refused(declaration: CorpusDeclaration, home: Home) -> None:
    synced(home, declaration)
    first, *others = SHARDS
    run_shard(home, declaration, first, lambda: None)
    with pytest.raises(IndexBuildError, match=r"documents of the newest version have no chunks.*for every shard"):
        joined(home, declaration)
    for shard in others:
        with writing(home, CORPUS, shard):
            chunk_corpus(home, declaration, shard=shard)
    with pytest.raises(IndexBuildError, match=r"the chunks of \d+ documents have no frames"):
        joined(home, declaration)


def test_a_check_that_failed_in_one_shard_blocks_the_join(declaration: CorpusDeclaration, home: Home) -> None:
    declaration = declaration.model_copy(update={"quarantine_threshold": 0.0})
    synced(home, declaration)
    reports = {shard: run_shard(home, declaration, shard, lambda: None)[0] for shard in SHARDS}
    assert [shard for shard, report in reports.items() if report.blocked] == [
        shard for shard in SHARDS if shard.holds("docs/severed.md")
    ]
    with pytest.raises(PromotionError, match="chunks_cover_documents failed"):
        joined(home, declaration)
