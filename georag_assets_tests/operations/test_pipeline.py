"""A build that answers worse than the live one, or not completely, does not go live."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georag_assets.corpus.declaration import load_declaration
from georag_assets.corpus.writer import writing
from georag_assets.errors import PlaceError, WriterBusyError
from georag_assets.home import Home
from georag_assets.index.builds import open_build
from georag_assets.index.live import live_build
from georag_assets.operations.pipeline import build_corpus, go_live
from georag_assets.operations.status import corpus_status
from georag_assets.reports import StageReport
from georag_assets.retrieval.evaluation import evidence_faults
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets.settings import Settings
from georag_assets_tests.small_corpora import declare

EVALUATION = "  removal_threshold: 0.5\n  evaluation: {queries: queries.jsonl, k: 1, margin: 0.1}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a small corpus with two labelled queries."""
    corpus = declare(tmp_path / "corpora", "small", extra=EVALUATION)
    queries = [
        {"query": "cherry trees above the village", "relevant": ["docs/orchard.md"], "bbox": [7, 46, 9, 48]},
        {"query": "groundwater in a fault", "relevant": ["docs/tunnel.md"], "bbox": [7, 46, 9, 48]},
    ]
    (corpus / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)), encoding="utf-8")
    return corpus


def build(home: Home, folder: Path) -> dict[str, StageReport]:
    return {report.stage: report for report in build_corpus(home, load_declaration(folder / "defs.yaml"))}


def test_a_build_that_answers_worse_than_the_live_one_is_stopped(home: Home, folder: Path) -> None:
    first = build(home, folder)
    assert list(first)[-2:] == ["evaluation", "live_index"]
    assert first["evaluation"].metadata["recall_at_k"] == 1
    live = live_build(home, "small")

    # The fault: the passage that answers one of the queries says something else.
    orchard = folder / "docs" / "orchard.md"
    text = orchard.read_text(encoding="utf-8")
    orchard.write_text("# Depot\n\nTrams are kept here.\n\nIt lies at SRID=4326;POINT (12 48).\n", encoding="utf-8")
    second = build(home, folder)
    assert list(second)[-1] == "evaluation" and second["evaluation"].blocked
    (failed,) = [check for check in second["evaluation"].checks if not check.passed]
    assert failed.name == "recall_not_below_live"
    assert failed.numbers["recall_at_k"] == 0.5 and failed.numbers["recall_at_k_live"] == 1
    assert live_build(home, "small") == live
    status = corpus_status(home, "small")
    assert (status.state, status.version_lag, status.failed_checks) == ("behind", 1, ("recall_not_below_live",))

    # It stays stopped when it is found again as a kept build, and a correction goes live.
    assert build(home, folder)["evaluation"].blocked and live_build(home, "small") == live
    orchard.write_text(text, encoding="utf-8")
    assert not build(home, folder)["evaluation"].blocked and live_build(home, "small") == live


def test_what_an_answer_leaves_out_is_found(home: Home, folder: Path) -> None:
    build(home, folder)
    with Retriever(home, ("small",)) as retriever:
        answer = retriever.search(Question("cherry trees", near=(7.75, 47.48)))
    assert answer.candidates and evidence_faults(answer) == []
    best = answer.candidates[0]

    def faults(**changed: Any) -> str:
        return " ".join(evidence_faults(replace(answer, candidates=(replace(best, **changed),))))

    assert "source" in faults(source="")
    assert "corpus_version" in faults(corpus_version="")
    assert "scores.fused" in faults(scores={**best.scores, "fused": float("nan")})
    assert "scores and ranks" in faults(ranks={"final": 1})
    assert "scores.fit" in faults(scores={**best.scores, "fit": None})
    assert "distance_m" in faults(distance_m=None)
    assert "frame.grade" in faults(frame={})
    assert "does not carry it" in " ".join(evidence_faults(replace(answer, region=None)))


def test_a_place_is_resolved_before_the_index_is_touched(home: Home, folder: Path) -> None:
    retriever = Retriever(home, ("small",))  # nothing is built: opening an index would be another error
    with pytest.raises(PlaceError):
        retriever.search(Question("wells", place="Xyzzyplugh"))


def test_every_arm_is_filtered(home: Home, folder: Path) -> None:
    build(home, folder)
    with Retriever(home, ("small",)) as retriever:
        for settings in (retriever.settings, retriever.settings.only("semantic"), retriever.settings.only("lexical")):
            retriever.settings = settings
            # Words of the tunnel, asked far from it.
            answer = retriever.search(Question("railway tunnel fault groundwater", near=(7.59, 47.56)))
            assert {found.doc_id for found in answer.candidates} <= {"docs/weir.md"}


def test_a_second_writer_is_refused(home: Home, folder: Path) -> None:
    with writing(home, "small"), pytest.raises(WriterBusyError, match="small"):
        build(home, folder)


def test_a_staged_build_can_be_searched_by_name(home: Home, folder: Path) -> None:
    name = str(build(home, folder)["index_build"].metadata["build"])
    with Retriever(home, ("small",), name) as retriever:
        (used,) = retriever.search(Question("peat drains slowly")).corpora
    assert used.build == name and not used.live
    with open_build(home, "small", name) as opened:
        assert opened.manifest.check("evidence_is_complete").passed  # type: ignore[union-attr]


@pytest.mark.parametrize("full", [False, True])
def test_no_question_waits_for_the_gazetteer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, full: bool) -> None:
    made: list[Home] = []

    def world(home: Home) -> None:
        made.append(home)
        if full:
            raise OSError(28, "No space left on device")

    promoted = StageReport("small", "live_index", "b", {}, {"promote": 0.1})
    monkeypatch.setattr("georag_assets.index.live.promote", lambda *_: promoted)
    monkeypatch.setattr("georag_assets.places.gazetteer.world", world)
    home = Home(Settings(home=tmp_path))
    report = go_live(home, "small", "v1-00000000-00000000-1")
    assert made == [home]
    assert report.stage == "live_index" and set(report.seconds) == {"promote", "gazetteer"}
