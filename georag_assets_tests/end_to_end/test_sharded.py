"""A sharded corpus in Dagster: the sensor takes it from a sync over its shards to the join, and a shard that fails
is asked for again alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest

from georag_assets.components import HomeResource
from georag_assets.components import stages as stages_module
from georag_assets.components.sensor import Cursor, Seen, judge, look
from georag_assets.corpus.declaration import load_declaration
from georag_assets.corpus.shards import Shard, shards_of
from georag_assets.corpus.versions import newest_version
from georag_assets.corpus.writer import writing
from georag_assets.errors import TableError
from georag_assets.home import Home
from georag_assets.index.live import live_build, live_state
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets_tests.dagster_runs import definitions
from georag_assets_tests.small_corpora import declare, texts

CORPUS = "field_notes"
SHARDS = ("1-of-2", "2-of-2")
RING = "# Severed\n\nSRID=4326;POLYGON ((7 47, 8 47, 8 48, 7 48))\n"


@pytest.fixture
def declarations(tmp_path: Path) -> Path:
    """Return a folder with one small corpus in two shards declared in it."""
    folder = tmp_path / "declared"
    declare(folder, CORPUS, documents=texts(), extra="  shards: 2\n  automation: {watch: true}\n")
    return folder


class Watch:
    """What the daemon does: ticks the sensor, runs what it asks for, keeps its cursor."""

    def __init__(self, declarations: Path, home: Home, instance: dg.DagsterInstance) -> None:
        self.declarations, self.home, self.instance = declarations, home, instance
        self.defs = definitions(declarations, home)
        self.cursor: str | None = None

    def tick(self) -> dg.SensorResult | dg.SensorExecutionData:
        repository = self.defs.get_repository_def()
        resources = {"georag_home": HomeResource(root=str(self.home.root))}
        with dg.build_sensor_context(
            instance=self.instance, repository_def=repository, resources=resources, cursor=self.cursor
        ) as context:
            data = repository.get_sensor_def(f"watch_{CORPUS}").evaluate_tick(context)
        self.cursor = data.cursor
        return data

    def asked(self) -> list[tuple[str, str | None]]:
        """Tick; return job and partition of each run that was asked for."""
        self.requests = self.tick().run_requests or []
        return [(str(request.job_name), request.partition_key) for request in self.requests]

    def run(self) -> list[bool]:
        """Run what the last tick asked for, one after another."""
        return [self.run_one(str(request.job_name), request.partition_key, request.tags) for request in self.requests]

    def run_one(self, job: str, partition: str | None = None, tags: Mapping[str, str] | None = None) -> bool:
        return (
            self.defs.resolve_job_def(job)
            .execute_in_process(
                instance=self.instance, partition_key=partition, tags=dict(tags or {}), raise_on_error=False
            )
            .success
        )

    def forget(self) -> None:
        """Drop the cursor: the wait after a failure is not what is tested."""
        self.cursor = None

    def until_quiet(self, most: int = 6) -> list[list[tuple[str, str | None]]]:
        ticks = []
        while (asked := self.asked()) and len(ticks) < most:
            ticks.append(asked)
            assert all(self.run())
        return ticks


@pytest.fixture
def watch(declarations: Path, home: Home, instance: dg.DagsterInstance) -> Watch:
    """Return the corpus's sensor with a daemon's part played."""
    return Watch(declarations, home, instance)


SYNC = [(f"sync_{CORPUS}", None)]
JOIN = [(f"join_{CORPUS}", None)]


def shard_runs(*names: str) -> list[tuple[str, str | None]]:
    return [(f"shard_{CORPUS}", name) for name in names]


def seen(watch: Watch) -> Seen:
    file = watch.declarations / CORPUS / "defs.yaml"
    return look(watch.instance, watch.home, load_declaration(file), "code")


def test_the_sensor_takes_a_corpus_from_its_sources_over_its_shards_to_the_live_index(watch: Watch) -> None:
    assert watch.until_quiet() == [SYNC, shard_runs(*SHARDS), JOIN]
    state = live_state(watch.home, CORPUS)
    assert state is not None
    assert state.corpus_version == newest_version(watch.home, CORPUS)
    with Retriever(watch.home, (CORPUS,)) as retriever:
        answer = retriever.search(Question("where was the weir raised after floods", place_from_words=False))
    assert answer.candidates[0].doc_id == "docs/weir.md"

    # Every partition and every check of the corpus is there to be looked at.
    for stage in ("chunks", "frames", "embeddings"):
        made = watch.instance.get_materialized_partitions(dg.AssetKey([CORPUS, stage]))
        assert made == set(SHARDS)

    # A change is a new version: it goes the same way.
    (watch.declarations / CORPUS / "docs" / "weir.md").write_text("# Weir\n\nTaken down.\n", encoding="utf-8")
    assert watch.until_quiet() == [SYNC, shard_runs(*SHARDS), JOIN]
    assert live_build(watch.home, CORPUS) != state.build


def test_a_shard_that_failed_is_asked_for_again_alone(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch.asked() == SYNC
    watch.run()
    framing = stages_module.frames.frame_corpus

    def failing(*args: object, shard: Shard, **options: object) -> object:
        if shard.number == 2:
            raise TableError("the disk is full")
        return framing(*args, shard=shard, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(stages_module.frames, "frame_corpus", failing)
    assert watch.asked() == shard_runs(*SHARDS)
    assert watch.run() == [True, False]
    monkeypatch.setattr(stages_module.frames, "frame_corpus", framing)
    watch.forget()
    assert watch.asked() == shard_runs("2-of-2")
    assert watch.run() == [True]
    assert watch.asked() == JOIN
    assert watch.run() == [True]
    assert watch.asked() == []


def test_a_shard_that_a_check_blocks_waits_while_the_others_go_on(watch: Watch) -> None:
    name = next(name for name in map("severed{}.md".format, range(9)) if Shard(2, 2).holds(f"docs/{name}"))
    (watch.declarations / CORPUS / "docs" / name).write_text(RING, encoding="utf-8")
    assert watch.asked() == SYNC
    watch.run()
    assert watch.asked() == shard_runs(*SHARDS)
    watch.run()
    watch.forget()
    for _ in range(2):
        data = watch.tick()
        assert not data.run_requests
        assert "chunks refused exactly this state" in str(data.skip_message)
    assert live_build(watch.home, CORPUS) is None

    # The join asked for by hand is refused: what it would join is not whole.
    assert not watch.run_one(f"join_{CORPUS}")
    assert live_build(watch.home, CORPUS) is None

    (watch.declarations / CORPUS / "docs" / name).unlink()
    assert watch.until_quiet() == [SYNC, shard_runs(*SHARDS), JOIN]
    assert live_build(watch.home, CORPUS) is not None


def test_a_shard_that_is_being_made_is_not_asked_for_twice(watch: Watch) -> None:
    assert watch.asked() == SYNC
    watch.run()
    first, second = shards_of(2)
    with writing(watch.home, CORPUS, first):
        assert watch.asked() == shard_runs(second.name)
        with writing(watch.home, CORPUS, second):
            ask, why, _ = judge(seen(watch), Cursor(), time.time())
            assert (ask, why) == (False, "a build is running or starting")
    with writing(watch.home, CORPUS):
        assert seen(watch).busy


def test_a_declaration_that_shards_without_its_sensor_is_refused(declarations: Path, home: Home) -> None:
    file = declarations / CORPUS / "defs.yaml"
    told = file.read_text(encoding="utf-8").replace("{watch: true}", '{cron: "0 3 * * *"}')
    file.write_text(told, encoding="utf-8")
    with pytest.raises(Exception, match=r"watch: true.*because the sensor starts the runs of the shards"):
        definitions(declarations, home)
