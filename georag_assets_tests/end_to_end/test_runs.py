"""Real runs of a small corpus through Dagster: incremental, blocked, refused, watched."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from georag_assets.components import HomeResource
from georag_assets.components.sensor import Cursor, judge, look
from georag_assets.corpus import chunk_stage
from georag_assets.corpus.declaration import load_declaration
from georag_assets.corpus.models import QUARANTINE
from georag_assets.corpus.writer import writing
from georag_assets.home import Home
from georag_assets.index.live import live_build, rollback
from georag_assets.reports import StageReport
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets_tests.dagster_runs import build, definitions, failure_of
from georag_assets_tests.small_corpora import PLACES, declare, texts

CORPUS = "field_notes"


@pytest.fixture
def declarations(tmp_path: Path) -> Path:
    """Return a folder with one small corpus declared in it."""
    folder = tmp_path / "declared"
    declare(folder, CORPUS)
    return folder


def numbers(result: dg.ExecuteInProcessResult, stage: str, corpus: str = CORPUS) -> dict[str, Any]:
    (event,) = [
        event for event in result.get_asset_materialization_events() if event.asset_key == dg.AssetKey([corpus, stage])
    ]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def answers(home: Home, words: str, corpus: str = CORPUS) -> list[str]:
    with Retriever(home, (corpus,)) as retriever:
        answer = retriever.search(Question(words, place_from_words=False))
    return [candidate.doc_id for candidate in answer.candidates]


def test_a_corpus_goes_live_and_only_what_changed_is_done_again(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    first = build(definitions(declarations, home), CORPUS, instance)
    assert first.success
    assert numbers(first, "documents")["new"] == 6
    live = live_build(home, CORPUS)
    assert answers(home, "where was the weir raised after floods")[0] == "docs/weir.md"

    again = build(definitions(declarations, home), CORPUS, instance)
    assert again.success
    assert numbers(again, "documents")["new"] == 0
    assert numbers(again, "embeddings")["new"] == 0
    assert numbers(again, "index_build")["build"] == live
    versions = {
        event.asset_key.path[1]: event.materialization.tags["dagster/data_version"]
        for result in (first, again)
        for event in result.get_asset_materialization_events()
    }
    for event in first.get_asset_materialization_events():
        assert event.materialization.tags["dagster/data_version"] == versions[event.asset_key.path[1]]

    (declarations / CORPUS / "docs" / "weir.md").write_text(
        "# The weir\n\nThe weir was pulled down in 2019.\n\nIt lies at SRID=4326;POINT (7.59 47.56).\n",
        encoding="utf-8",
    )
    changed = build(definitions(declarations, home), CORPUS, instance)
    assert changed.success
    assert numbers(changed, "documents")["changed"] == 1
    assert numbers(changed, "chunks")["new"] == 1
    assert numbers(changed, "embeddings")["new"] == 1
    assert live_build(home, CORPUS) != live
    assert answers(home, "when was the weir pulled down")[0] == "docs/weir.md"


def test_a_blocked_check_stops_everything_after_it_and_changes_nothing_live(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    assert build(definitions(declarations, home), CORPUS, instance).success
    live = live_build(home, CORPUS)

    docs = declarations / CORPUS / "docs"
    (docs / "weir.md").write_text("The weir is gone.\n", encoding="utf-8")
    (docs / "quarry.md").write_bytes(b"\xff\xfe not UTF-8 \x80")
    blocked = build(definitions(declarations, home), CORPUS, instance)

    assert not blocked.success
    assert [event.asset_key.path[1] for event in blocked.get_asset_materialization_events()] == ["documents"]
    (failed,) = [check for check in blocked.get_asset_check_evaluations() if not check.passed]
    assert failed.check_name == "quarantine_within_threshold"
    assert failed.severity is dg.AssetCheckSeverity.ERROR
    assert failed.metadata["quarantined_share"].value == pytest.approx(1 / 6)
    assert live_build(home, CORPUS) == live
    assert answers(home, "limestone quarry northern face")[0] == "docs/quarry.md"

    # The next run, from the middle on, must not promote what this one stopped: Dagster's blocking ends with its run.
    onwards = dg.AssetSelection.assets(*[[CORPUS, stage] for stage in ("index_build", "live_index")])
    defs = definitions(declarations, home)
    job = dg.define_asset_job("onwards", selection=onwards)
    merged = dg.Definitions(assets=defs.assets, resources=defs.resources, jobs=[job])
    assert not merged.resolve_job_def("onwards").execute_in_process(instance=instance, raise_on_error=False).success
    assert live_build(home, CORPUS) == live


def test_a_severed_ring_is_quarantined_with_its_reason_and_the_rest_goes_live(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    (declarations / CORPUS / "docs" / "ring.md").write_text("# Ring\n\nPOLYGON ((7 47, 8 47, 8 48\n", encoding="utf-8")
    text = (declarations / CORPUS / "defs.yaml").read_text(encoding="utf-8")
    (declarations / CORPUS / "defs.yaml").write_text(text + "  quarantine_threshold: 0.5\n", encoding="utf-8")
    result = build(definitions(declarations, home), CORPUS, instance)
    assert result.success
    assert answers(home, "weir")
    rows = home.tables.read(CORPUS, QUARANTINE).to_pylist()
    assert [row["doc_id"] for row in rows] == ["docs/ring.md"]
    assert rows[0]["reason"]


def test_an_error_is_a_message_and_no_wall(declarations: Path, home: Home, instance: dg.DagsterInstance) -> None:
    assert build(definitions(declarations, home), CORPUS, instance).success
    for path in (declarations / CORPUS / "docs").iterdir():
        path.unlink()
    result = build(definitions(declarations, home), CORPUS, instance)
    step, shown = failure_of(result)
    assert step == f"{CORPUS}__documents"
    assert "would remove 6 of 6 documents" in shown
    assert str(declarations / CORPUS / "docs") in shown

    config = {"ops": {f"{CORPUS}__documents": {"config": {"allow_removal": True}}}}
    (declarations / CORPUS / "docs" / "weir.md").write_text(texts()["weir.md"], encoding="utf-8")
    assert build(definitions(declarations, home), CORPUS, instance, config).success
    assert answers(home, "weir") == ["docs/weir.md"]


def _hold(home: Home, taken: Any, release: Any) -> None:
    with writing(home, CORPUS):
        taken.set()
        release.wait(60)


def test_a_second_run_on_one_corpus_is_refused_with_the_writers_pid(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    context = multiprocessing.get_context("spawn")
    taken, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(home, taken, release))
    other.start()
    try:
        assert taken.wait(60)
        result = build(definitions(declarations, home), CORPUS, instance)
        step, shown = failure_of(result)
        assert step == f"{CORPUS}__documents"
        assert f"corpus {CORPUS} is being written by pid {other.pid}" in shown
        assert not [event for event in result.all_events if event.is_step_restarted or event.is_step_up_for_retry]
    finally:
        release.set()
        other.join(60)
    assert build(definitions(declarations, home), CORPUS, instance).success


def test_the_lock_spans_the_run_and_ends_with_it(
    declarations: Path, home: Home, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from georag_assets.components import stages
    from georag_assets.corpus.writer import is_busy

    seen = []

    def watching(*args: Any, **options: Any) -> StageReport:
        seen.append(is_busy(home, CORPUS))
        return chunk_stage.chunk_corpus(*args, **options)

    monkeypatch.setattr(stages, "chunk_corpus", watching)
    assert build(definitions(declarations, home), CORPUS, instance).success
    assert seen == [True]
    assert not is_busy(home, CORPUS)


def test_the_sensor_asks_while_sources_and_live_index_differ(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    file = declarations / CORPUS / "defs.yaml"

    def tick(cursor: Cursor = Cursor()) -> tuple[bool, str, Cursor]:  # noqa: B008 - frozen
        return judge(look(instance, home, load_declaration(file), "code"), cursor, time.time())

    ask, why, _ = tick()
    assert ask
    assert "sources changed" in why

    assert build(definitions(declarations, home), CORPUS, instance).success
    assert tick()[:2] == (False, "sources and live index agree")

    with writing(home, CORPUS):
        (declarations / CORPUS / "docs" / "weir.md").write_text("Another text altogether.\n", encoding="utf-8")
        ask, why, _ = tick()
        assert not ask
        assert "running" in why
    assert tick()[0], "the change landed during a run, and is seen after it"

    assert build(definitions(declarations, home), CORPUS, instance).success
    rollback(home, CORPUS)
    ask, why, _ = tick()
    assert not ask
    assert "rollback holds" in why
    rollback(home, CORPUS, release=True)
    ask, why, _ = tick()
    assert ask
    assert "newest version" in why


def test_the_sensor_of_an_unmounted_source_asks_for_nothing(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    file = declarations / CORPUS / "defs.yaml"
    (declarations / CORPUS / "docs").rename(declarations / CORPUS / "elsewhere")
    ask, why, _ = judge(look(instance, home, load_declaration(file), "code"), Cursor(), time.time())
    assert not ask
    assert str(declarations / CORPUS / "docs") in why


def test_the_sensor_runs_as_dagster_runs_it(declarations: Path, home: Home, instance: dg.DagsterInstance) -> None:
    repository = definitions(declarations, home).get_repository_def()
    sensor = repository.get_sensor_def(f"watch_{CORPUS}")
    resources = {"georag_home": HomeResource(root=str(home.root))}
    with dg.build_sensor_context(instance=instance, repository_def=repository, resources=resources) as context:
        data = sensor.evaluate_tick(context)
    (request,) = data.run_requests or []
    assert request.run_key is None
    assert request.tags["georag/asked_for"]
    assert data.cursor
    assert len(data.cursor) < 150


def test_a_corpus_with_labelled_queries_is_evaluated_before_it_goes_live(
    declarations: Path, home: Home, instance: dg.DagsterInstance
) -> None:
    corpus = declarations / CORPUS
    asked = [
        {
            "query": text.rstrip("."),
            "bbox": [lon - 0.2, lat - 0.2, lon + 0.2, lat + 0.2],
            "relevant": [f"docs/{name}.md"],
        }
        for name, (text, lon, lat) in PLACES.items()
    ]
    (corpus / "queries.jsonl").write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    with (corpus / "defs.yaml").open("a", encoding="utf-8") as file:
        file.write("  evaluation: {queries: queries.jsonl, k: 3}\n")
    result = build(definitions(declarations, home), CORPUS, instance)
    assert result.success
    figures = numbers(result, "evaluation")
    assert figures["queries"] == 6
    assert figures["recall_at_k"] == pytest.approx(1.0)
    assert figures["mrr"] > 0.9
    passed = {check.check_name for check in result.get_asset_check_evaluations() if check.passed}
    assert {"evidence_is_complete", "recall_not_below_live"} <= passed
    assert live_build(home, CORPUS) == figures["build"]
