"""Builds: made whole or not at all, reused, promoted only when every check is there, opened safely."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import qdrant_edge as engine
import yaml

from georag_assets.errors import DiskSpaceError, GeoragError, IndexBuildError, PromotionError
from georag_assets.geometry.region import Region
from georag_assets.home import Home
from georag_assets.index import builds, files, folders, live, manifest
from georag_assets.index.builds import build_index, open_build, record_check
from georag_assets.index.engine_writer import write_engine
from georag_assets.index.live import live_build, live_state, promote, prune, rollback
from georag_assets.index.models import DenseQuery, LexicalQuery, SearchFilter
from georag_assets.reports import CheckResult, StageReport
from georag_assets.settings import Settings
from georag_assets_tests.index.small_corpus import (
    chunk_id,
    declaration,
    embedder,
    run_upstream,
    write_chunks,
    write_corpus,
)

POINTS = 120


def build(home: Home, *, seed: int | None = None, count: int = POINTS, **options: object) -> StageReport:
    """Run the stages up to the build; with a seed, the corpus gains that seed's passages."""
    made, _ = embedder()
    if seed is not None:
        write_corpus(home, count, seed=seed, unlocated=5)
    run_upstream(home, made, **options)  # type: ignore[arg-type]
    return build_index(home, declaration(), embedder=made)


def name_of(report: StageReport) -> str:
    return str(report.metadata["build"])


@pytest.fixture(scope="module")
def still_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One live build for the tests that must not change it, which is what most of them are about."""
    home = Home(Settings(home=tmp_path_factory.mktemp("still")))
    promote(home, "small", name_of(build(home, seed=1)))
    return home


@pytest.fixture
def live_home(home: Home) -> Home:
    """A home whose corpus has a live build of 120 points."""
    promote(home, "small", name_of(build(home, seed=1)))
    return home


def answers(home: Home, count: int = POINTS) -> None:
    """The live build is what it was: it verifies and answers."""
    name = live_build(home, "small")
    assert name is not None
    manifest.verify(folders.build_folder(home, "small", name))
    with open_build(home, "small") as opened:
        assert opened.columns.count == opened.manifest.counts["points"] == count
        vector = embedder()[0].encode(["weir harbour survey"])[0]
        report = opened.search(DenseQuery(vector), SearchFilter(), 5)
        assert len(report.hits) == 5


def visible_builds(home: Home) -> list[str]:
    return sorted(path.name for path in home.builds_folder("small").iterdir() if not path.name.startswith("."))


# --- making -------------------------------------------------------------------------------------------------------


def test_a_build_has_a_manifest_that_says_what_it_is(still_home: Home) -> None:
    name = live_build(still_home, "small")
    folder = folders.build_folder(still_home, "small", str(name))
    written = manifest.verify(folder)
    assert written.counts["points"] == written.counts["chunks"] == POINTS
    assert written.build.startswith(f"{written.corpus_version}-{written.identity}-")
    assert set(written.snapshots) == {"documents", "chunks", "frames", "embeddings"}
    assert {check.name for check in written.checks} == set(live.REQUIRED)
    assert all(check.passed for check in written.checks)
    assert written.footprint_bytes == POINTS * 32 * 4 + POINTS * 16 * 2 * 4
    assert 0 < written.allocated_bytes < written.apparent_bytes
    assert set(written.files) == set(files.files_below(folder)) - {"manifest.json", "readers.lock"}
    json.loads((folder / "manifest.json").read_text(), parse_constant=lambda word: pytest.fail(word))


def test_a_build_answers_by_meaning_words_and_place(still_home: Home) -> None:
    texts = write_corpus(Home(still_home.settings.model_copy(update={"home": still_home.root / "x"})), POINTS, seed=1)
    with open_build(still_home, "small") as opened:
        vector = embedder()[0].encode([texts[7]])[0]
        everywhere = opened.search(DenseQuery(vector), SearchFilter(), 3)
        assert everywhere.hits[0].chunk_id == chunk_id(texts[7])
        (shape,) = opened.geometries([chunk_id(texts[7])])
        here = SearchFilter(region=Region.from_shape(shape))
        assert opened.search(DenseQuery(vector), here, 3).hits[0].chunk_id == chunk_id(texts[7])
        worded = opened.search(LexicalQuery("number 7"), here, 3)
        assert worded.hits[0].chunk_id == chunk_id(texts[7])
        payload = opened.payloads([chunk_id(texts[7])])[chunk_id(texts[7])]
        assert payload["text"] == texts[7]
        assert payload["source"].endswith(".txt")
        assert opened.geometries([chunk_id(texts[-1]), "unknown"]).tolist() == [None, None]


def test_the_same_content_and_settings_reuse_the_build(live_home: Home) -> None:
    again = build(live_home)
    assert again.metadata["reused"] is True
    assert name_of(again) == live_build(live_home, "small")
    assert len(visible_builds(live_home)) == 1


def test_content_that_returns_promotes_its_kept_build_again(live_home: Home) -> None:
    first = live_build(live_home, "small")
    more = write_corpus(live_home, 10, seed=2)
    second = name_of(build(live_home))
    promote(live_home, "small", second)
    answers(live_home, POINTS + 10)
    remove(live_home, more)
    third = build(live_home)
    assert third.metadata["reused"] is True
    assert name_of(third) == first
    promote(live_home, "small", name_of(third))
    assert live_build(live_home, "small") == first


def remove(home: Home, texts: list[str]) -> None:
    from georag_assets.corpus.models import CHUNKS, DOCUMENTS
    from georag_assets.frames.models import FRAMES
    from georag_assets_tests.index.small_corpus import sha

    gone = [f"doc-{sha(text)[:8]}" for text in texts]
    for spec in (DOCUMENTS, CHUNKS, FRAMES):
        home.tables.replace_rows("small", spec, key="doc_id", removed=gone, added=spec.schema.empty_table())


def test_another_setting_is_another_build_of_the_same_version(live_home: Home) -> None:
    other = Home(live_home.settings.model_copy(update={"exact_limit": 7}))
    first, second = str(live_build(live_home, "small")), name_of(build(other))
    assert first != second
    assert first.rsplit("-", 2)[0] == second.rsplit("-", 2)[0]


def test_leftovers_of_killed_runs_are_discarded_and_were_never_builds(live_home: Home) -> None:
    name = str(live_build(live_home, "small"))
    folder = live_home.builds_folder("small")
    shutil.copytree(folder / name, folder / f".staging-{name}")
    shutil.copytree(folder / name, folder / f".discarded-{name}")
    assert [each.build for each in folders.complete_builds(live_home, "small")] == [name]
    build(live_home, seed=3)
    assert not [path for path in folder.iterdir() if path.name.startswith((".staging", ".discarded"))]


def test_a_damaged_kept_build_is_made_anew_under_the_next_attempt(live_home: Home) -> None:
    name = str(live_build(live_home, "small"))
    victim = next((live_home.builds_folder("small") / name / "engine").rglob("segment.json"))
    victim.write_bytes(victim.read_bytes()[:-1])
    again = build(live_home)
    assert again.metadata["reused"] is False
    assert name_of(again) == name.rsplit("-", 1)[0] + "-2"


def test_chunks_of_another_version_are_refused(live_home: Home) -> None:
    write_chunks(live_home, ["a chunk of a document that the version does not have"])
    with pytest.raises(IndexBuildError, match="chunks of 1 documents are not of the corpus's newest version"):
        build(live_home)
    answers(live_home)


def test_a_corpus_without_a_version_is_one_clear_sentence(home: Home) -> None:
    with pytest.raises(IndexBuildError, match="has no version yet"):
        build_index(home, declaration(), embedder=embedder()[0])


def test_chunks_without_a_usable_vector_get_no_point(home: Home) -> None:
    texts = write_corpus(home, 30)
    made, _ = embedder(planted={texts[3]: [np.nan] * 32})
    run_upstream(home, made)
    report = build_index(home, declaration(), embedder=made)
    assert report.counts["points"] == 29
    assert not report.blocked, [check for check in report.checks if not check.passed]
    with pytest.raises(PromotionError, match="nothing"):
        rollback(home, "small")


# --- planted faults: each blocks, none changes what is live -------------------------------------------------------


def any_point(shard: engine.EdgeShard) -> object:
    return shard.scroll(engine.ScrollRequest(limit=1, with_payload=True, with_vector=True))[0][0]


def drop_index(shard: engine.EdgeShard) -> None:
    shard.update(engine.UpdateOperation.delete_field_index("west"))


def wrong_type_of_index(shard: engine.EdgeShard) -> None:
    shard.update(engine.UpdateOperation.delete_field_index("west"))
    shard.update(engine.UpdateOperation.create_field_index("west", engine.PayloadSchemaType.Integer))


def number_as_text(shard: engine.EdgeShard) -> None:
    """The float index then no longer covers that point."""
    shard.update(engine.UpdateOperation.set_payload([any_point(shard).id], {"west": "7.25"}))


def no_source(shard: engine.EdgeShard) -> None:
    shard.update(engine.UpdateOperation.delete_payload([any_point(shard).id], ["source"]))


def other_version(shard: engine.EdgeShard) -> None:
    shard.update(engine.UpdateOperation.set_payload([any_point(shard).id], {"corpus_version": "v9-deadbeef"}))


def point_missing(shard: engine.EdgeShard) -> None:
    shard.update(engine.UpdateOperation.delete_points([any_point(shard).id]))


def point_too_many(shard: engine.EdgeShard) -> None:
    point = any_point(shard)
    vector = np.full(32, 0.1, np.float32)
    extra = engine.Point("00000000-0000-4000-8000-000000000000", {"text": vector}, point.payload)
    shard.update(engine.UpdateOperation.upsert_points([extra]))


def planted_vector(vector: object) -> Callable[[engine.EdgeShard], None]:
    def plant(shard: engine.EdgeShard) -> None:
        point = any_point(shard)
        named = {} if vector is None else {"text": np.asarray(vector, np.float32)}
        shard.update(engine.UpdateOperation.upsert_points([engine.Point(point.id, named, point.payload)]))

    return plant


FAULTS = {
    "index dropped": (drop_index, "spatial_filter_is_indexed"),
    "index of another type": (wrong_type_of_index, "spatial_filter_is_indexed"),
    "index incomplete": (number_as_text, "spatial_filter_is_indexed"),
    "point without source": (no_source, "every_point_names_its_source"),
    "point of another version": (other_version, "every_point_names_its_source"),
    "point missing": (point_missing, "points_equal_chunks"),
    "point too many": (point_too_many, "points_equal_chunks"),
    "vector NaN": (planted_vector([np.nan] * 32), "points_equal_chunks"),
    "vector infinite": (planted_vector([np.inf] + [0.0] * 31), "points_equal_chunks"),
    "vector zero": (planted_vector([0.0] * 32), "points_equal_chunks"),
    "vector absent": (planted_vector(None), "points_equal_chunks"),
    "vector of another text": (planted_vector([1.0] + [0.0] * 31), "points_equal_chunks"),
}


def write_and_plant(plant: Callable[[engine.EdgeShard], None]) -> Callable[..., object]:
    def write(folder: Path, *given: object, **named: object) -> object:
        summary = write_engine(folder, *given, **named)  # type: ignore[arg-type]
        shard = engine.EdgeShard.load(str(folder))
        plant(shard)
        shard.flush()
        shard.close()
        return summary

    return write


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_engine_blocks_and_the_live_index_stays(
    still_home: Home, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    before = still_home.live_pointer("small").read_bytes()
    plant, check = FAULTS[fault]
    monkeypatch.setattr(builds, "write_engine", write_and_plant(plant))
    report = build(still_home, seed=100 + list(FAULTS).index(fault), count=10)
    assert report.blocked
    assert check in {each.name for each in report.checks if not each.passed}
    with pytest.raises(PromotionError, match=f"{check} failed"):
        promote(still_home, "small", name_of(report))
    assert still_home.live_pointer("small").read_bytes() == before
    answers(still_home)


def test_a_failed_build_is_not_taken_for_a_kept_one(live_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "write_engine", write_and_plant(drop_index))
    report = build(live_home, seed=2)
    monkeypatch.undo()
    repaired = build(live_home)
    assert not repaired.blocked
    assert name_of(repaired) != name_of(report)
    promote(live_home, "small", name_of(repaired))
    answers(live_home, 2 * POINTS)


def test_a_filter_moved_after_the_search_is_seen(still_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from georag_assets.index.planner import PlannedSearch

    before = still_home.live_pointer("small").read_bytes()
    ask = PlannedSearch._ask

    def unfiltered(self: PlannedSearch, query: object, compiled: object, limit: int) -> object:
        found = ask(self, query, replace(compiled, condition=None, form="none"), self.columns.count)  # type: ignore[arg-type, type-var]
        return self._surviving(found, compiled.selection)[:limit]  # type: ignore[attr-defined]

    monkeypatch.setattr(PlannedSearch, "_ask", unfiltered)
    report = build(still_home, seed=202, count=10)
    failed = next(each for each in report.checks if each.name == "spatial_filter_is_indexed")
    assert not failed.passed
    assert "without" in str(failed.detail["faults"])
    with pytest.raises(PromotionError):
        promote(still_home, "small", name_of(report))
    assert still_home.live_pointer("small").read_bytes() == before


def test_an_exact_threshold_switched_off_fails_filtered_recall(home: Home) -> None:
    """Without the plan's exact answers a filtered search is left to the engine's estimate."""
    promote(home, "small", name_of(build(home, seed=1)))
    off = Home(home.settings.model_copy(update={"exact_limit": 0}))
    before = home.live_pointer("small").read_bytes()
    made, _ = embedder()
    write_corpus(off, 400, seed=4)
    run_upstream(off, made)
    plan = builds.PlanSettings
    builds_plan = lambda exact_limit: plan(exact_limit=exact_limit, ids_limit=0)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builds, "PlanSettings", builds_plan)
        report = build_index(off, declaration(), embedder=made)
    failed = next(each for each in report.checks if each.name == "filtered_recall")
    assert not failed.passed
    with pytest.raises(PromotionError, match="filtered_recall failed"):
        promote(off, "small", name_of(report))
    assert home.live_pointer("small").read_bytes() == before


def test_a_required_check_that_was_never_recorded_refuses(still_home: Home) -> None:
    before = still_home.live_pointer("small").read_bytes()
    name = name_of(build(still_home, seed=200, count=10))
    path = folders.build_folder(still_home, "small", name) / "manifest.json"
    text = path.read_text()
    for check in live.REQUIRED:
        value = json.loads(text)
        value["checks"] = [each for each in value["checks"] if each["name"] != check]
        path.write_text(json.dumps(value))
        with pytest.raises(PromotionError, match=f"{check} was never recorded"):
            promote(still_home, "small", name)
    assert still_home.live_pointer("small").read_bytes() == before


def test_a_failed_upstream_check_refuses(still_home: Home) -> None:
    report = build(still_home, seed=201, count=10, failing=["every_geometry_parses"])
    with pytest.raises(PromotionError, match="every_geometry_parses failed"):
        promote(still_home, "small", name_of(report))
    answers(still_home)


def test_a_corpus_with_queries_needs_its_evaluation(live_home: Home) -> None:
    made, _ = embedder()
    write_corpus(live_home, 5, seed=2)
    run_upstream(live_home, made)
    declared = declaration()
    declared.evaluation = object()
    name = name_of(build_index(live_home, declared, embedder=made))
    with pytest.raises(PromotionError, match="recall_not_below_live was never recorded"):
        promote(live_home, "small", name)
    passed = [CheckResult(each, True, True, each) for each in live.REQUIRED_WITH_QUERIES]
    record_check(live_home, "small", name, *passed)
    record_check(live_home, "small", name, CheckResult("recall_not_below_live", False, True, "fell"))
    with pytest.raises(PromotionError, match="recall_not_below_live failed"):
        promote(live_home, "small", name)
    record_check(live_home, "small", name, *passed)
    promote(live_home, "small", name)
    answers(live_home, POINTS + 5)


# --- verification -------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(still_home: Home) -> Iterator[Path]:
    """A second complete folder of the live build, to be damaged."""
    name = str(live_build(still_home, "small"))
    target = folders.build_folder(still_home, "small", f"{name.rsplit('-', 1)[0]}-77")
    files.copy_tree(folders.build_folder(still_home, "small", name), target)
    value = json.loads((target / "manifest.json").read_text())
    (target / "manifest.json").write_text(json.dumps({**value, "build": target.name}))
    yield target
    shutil.rmtree(target)


def refused_everywhere(home: Home, folder: Path, path: str, *, opens: bool) -> None:
    with pytest.raises(IndexBuildError) as refused:
        manifest.verify(folder)
    assert path in str(refused.value)
    with pytest.raises(PromotionError, match="cannot go live"):
        promote(home, "small", folder.name)
    if not opens:
        with pytest.raises(IndexBuildError) as unopened:
            open_build(home, "small", folder.name)
        assert path in str(unopened.value)


def test_case_o30_a_folder_that_lacks_or_truncates_any_file_is_no_build(still_home: Home, copied: Path, case) -> None:
    """Not only the nine of the case: every file of the folder, left out and cut in half."""
    given = case("o30")["input"]
    before = still_home.live_pointer("small").read_bytes()
    names = list(manifest.read(copied).files)
    endings = {each.rsplit("/", 1)[-1] for each in given["leave_out_one"] + given["truncate_half"]}
    assert endings & {each.rsplit("/", 1)[-1] for each in names}
    aside = copied.parent / ".staging-aside"
    for path in names:
        victim = copied / path
        victim.rename(aside)
        refused_everywhere(still_home, copied, path, opens=False)
        if aside.stat().st_size:
            files.copy_file(aside, victim)
            os.truncate(victim, victim.stat().st_size // 2)
            refused_everywhere(still_home, copied, path, opens=False)
        aside.rename(victim)
    assert manifest.verify(copied).build == copied.name
    assert still_home.live_pointer("small").read_bytes() == before
    answers(still_home)


def test_case_o30_a_changed_byte_is_found(still_home: Home, copied: Path) -> None:
    for path in [name for name in manifest.read(copied).files if (copied / name).stat().st_size][::25]:
        with (copied / path).open("r+b") as stream:
            byte = stream.read(1)
            for value in (byte[0] ^ 0xFF, byte[0]):
                stream.seek(0)
                stream.write(bytes([value]))
                stream.flush()
                if value != byte[0]:
                    refused_everywhere(still_home, copied, path, opens=True)


def test_a_segment_too_many_is_refused(copied: Path) -> None:
    (segment,) = (copied / "engine" / "segments").iterdir()
    files.copy_tree(segment, segment.with_name("00000000-0000-4000-8000-000000000000"))
    with pytest.raises(IndexBuildError, match=r"not its own.*00000000"):
        manifest.verify(copied)


def test_a_manifest_that_is_not_whole_is_refused(still_home: Home, copied: Path) -> None:
    for text in ("", "{", "[]", '{"format": 1}', '{"format": 99}'):
        (copied / "manifest.json").write_text(text)
        with pytest.raises(IndexBuildError, match=r"manifest\.json"):
            manifest.verify(copied)
        assert copied.name not in {each.build for each in folders.complete_builds(still_home, "small")}


def test_opening_and_searching_leave_the_build_as_it_was(still_home: Home) -> None:
    name = str(live_build(still_home, "small"))
    for _ in range(3):
        answers(still_home)
    manifest.verify(folders.build_folder(still_home, "small", name), deep=True)


@pytest.mark.parametrize("name", ["../../etc", "v1-1", "", ".staging-v1-12345678-12345678-1"])
def test_a_name_that_no_build_can_have_reaches_no_path(home: Home, name: str) -> None:
    with pytest.raises(IndexBuildError, match="not the name"):
        folders.build_folder(home, "small", name)


# --- live ---------------------------------------------------------------------------------------------------------


def clone(home: Home, number: int) -> str:
    """A further complete build, as another version's would be, without the seconds of making it."""
    source = folders.build_folder(home, "small", str(live_build(home, "small")))
    version = f"v{number}-{number:08x}"
    target = source.with_name(f"{version}-{manifest.read(source).identity}-1")
    files.copy_tree(source, target)
    made = datetime.now(UTC).isoformat(timespec="microseconds")
    manifest.write(target, replace(manifest.read(source), build=target.name, corpus_version=version, created_at=made))
    return target.name


def test_nothing_live_is_one_clear_sentence(home: Home) -> None:
    assert live_build(home, "small") is None
    with pytest.raises(IndexBuildError, match="nothing of corpus small is live"):
        open_build(home, "small")


@pytest.mark.parametrize("text", ["", "{}", "nonsense"])
def test_a_damaged_pointer_is_never_taken_for_nothing(live_home: Home, text: str) -> None:
    live_home.live_pointer("small").write_text(text)
    with pytest.raises(IndexBuildError, match="live pointer cannot be read"):
        live_build(live_home, "small")


def test_a_rollback_holds_until_a_newer_version(live_home: Home) -> None:
    first = live_build(live_home, "small")
    second = name_of(build(live_home, seed=2))
    promote(live_home, "small", second)
    state = rollback(live_home, "small")
    assert state.build == first
    assert state.hold is not None and state.hold.rolled_back_from == second
    held = promote(live_home, "small", name_of(build(live_home)))
    assert held.counts["held"] == 1
    assert live_build(live_home, "small") == first
    # Another setting does not end it: the version is the one that was rolled back from.
    other = Home(live_home.settings.model_copy(update={"exact_limit": 9}))
    promote(other, "small", name_of(build(other)))
    assert live_build(live_home, "small") == first
    third = name_of(build(live_home, seed=3))
    assert promote(live_home, "small", third).counts["promoted"] == 1
    assert live_build(live_home, "small") == third
    assert live_state(live_home, "small").hold is None


def test_a_released_hold_lets_the_next_run_promote(live_home: Home) -> None:
    first = live_build(live_home, "small")
    second = name_of(build(live_home, seed=2))
    promote(live_home, "small", second)
    rollback(live_home, "small", to=first)
    assert rollback(live_home, "small", release=True).build == first
    promote(live_home, "small", second)
    assert live_build(live_home, "small") == second


def test_a_second_rollback_goes_further_back(live_home: Home) -> None:
    names = [live_build(live_home, "small")]
    for seed in (2, 3):
        names.append(clone(live_home, seed))
        promote(live_home, "small", names[-1])
    assert rollback(live_home, "small").build == names[1]
    assert rollback(live_home, "small").build == names[0]
    with pytest.raises(PromotionError, match="no earlier build"):
        rollback(live_home, "small")
    assert live_build(live_home, "small") == names[0]


def test_a_rollback_to_a_build_that_does_not_verify_is_refused(live_home: Home) -> None:
    first = str(live_build(live_home, "small"))
    promote(live_home, "small", clone(live_home, 2))
    victim = next((folders.build_folder(live_home, "small", first) / "columns").glob("*.npy"))
    victim.unlink()
    before = live_home.live_pointer("small").read_bytes()
    with pytest.raises(PromotionError, match=victim.name):
        rollback(live_home, "small", to=first)
    with pytest.raises(GeoragError):
        rollback(live_home, "small")
    assert live_home.live_pointer("small").read_bytes() == before


def test_case_o38_pruning_spares_the_live_build_the_way_back_and_readers(live_home: Home, case) -> None:
    expected = case("o38")["expected"]
    keep_all = Home(live_home.settings.model_copy(update={"keep_builds": 99}))
    names = {"b1": str(live_build(live_home, "small"))}
    for number in range(2, 6):
        names[f"b{number}"] = clone(keep_all, number)
        promote(keep_all, "small", names[f"b{number}"])
    rollback(keep_all, "small", to=names["b1"])
    reader = open_build(keep_all, "small", names["b2"])
    prune(live_home, "small")
    left = set(visible_builds(live_home))
    assert {names[each] for each in (*expected["never_deleted"], *expected["kept_newest"], "b2")} <= left
    assert len(reader.search(LexicalQuery("weir"), SearchFilter(), 3).hits) == 3
    reader.close()
    assert prune(live_home, "small") == tuple(names[each] for each in expected["or_deleted_subset_of"])
    answers(live_home, POINTS)


def test_a_reader_keeps_answering_through_promotion_and_pruning(live_home: Home) -> None:
    one = Home(live_home.settings.model_copy(update={"keep_builds": 1}))
    first = str(live_build(one, "small"))
    with open_build(one, "small") as reader:
        for seed in (2, 3, 4):
            promote(one, "small", clone(one, seed))
            assert len(reader.search(LexicalQuery("weir"), SearchFilter(), 3).hits) == 3
        assert first in visible_builds(one)
    prune(one, "small")
    assert first not in visible_builds(one)


# --- space and copies ---------------------------------------------------------------------------------------------


def test_case_o29_a_copy_keeps_holes_and_content(live_home: Home, tmp_path: Path, case) -> None:
    source = folders.build_folder(live_home, "small", str(live_build(live_home, "small")))
    target = tmp_path / source.name
    written = files.copy_tree(source, target)
    allocated, apparent = files.sizes(source)
    assert apparent > 10 * allocated
    assert written <= case("o29")["expected"]["bytes_written_max_factor_of_allocated"] * allocated
    assert files.sizes(target)[0] <= 2 * allocated
    assert manifest.verify(target, deep=True) == manifest.read(source)
    reported = build(live_home).metadata
    assert set(case("o29")["expected"]["footprint_reports"]) <= set(reported)


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 5000, b"a" * 4096 + b"\0" * 100_000 + b"b"])
def test_copies_of_odd_files_are_equal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "from").mkdir()
    with (tmp_path / "from" / "file").open("wb") as stream:
        stream.write(content)
        stream.truncate(len(content) + 70_000)
    files.copy_tree(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "file").read_bytes() == (tmp_path / "from" / "file").read_bytes()


def test_a_home_that_cannot_be_written_is_read_through_a_private_copy(
    still_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr(builds.tempfile, "tempdir", str(private))
    monkeypatch.setattr(builds.os, "access", lambda path, mode: mode != os.W_OK)
    with open_build(still_home, "small") as opened:
        assert len(opened.search(LexicalQuery("weir"), SearchFilter(), 3).hits) == 3
        assert len(list(private.iterdir())) == 1
    assert list(private.iterdir()) == []


def test_too_little_space_is_said_before_anything_is_written(live_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(live_home.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DiskSpaceError, match=r"free space.*where: .*expected: .*MiB"):
        build(live_home, seed=2)
    with pytest.raises(DiskSpaceError, match="disk full"):
        open_build(live_home, "small")
    monkeypatch.undo()
    answers(live_home)
    assert len(visible_builds(live_home)) == 1
    promote(live_home, "small", name_of(build(live_home)))


@pytest.mark.parametrize(
    "content", ["", "[]", "null", "{}", "build: 5", "build: ../../x", "hold: 5", "history: 5", "history: [../x]"]
)
def test_a_live_pointer_that_says_nothing_usable_is_an_error(home: Home, content: str) -> None:
    state = live.LiveState("small", "v1-00000000-00000000-1", "v1-00000000", "2026-01-01T00:00:00+00:00")
    pointer = home.live_pointer("small")
    pointer.parent.mkdir(parents=True)
    files.write_json(pointer, asdict(state))
    assert live_state(home, "small") == state
    key, _, value = content.partition(": ")
    pointer.write_text(json.dumps(asdict(state) | {key: yaml.safe_load(value)}) if value else content)
    with pytest.raises(IndexBuildError, match="the live pointer cannot be read"):
        live_state(home, "small")
