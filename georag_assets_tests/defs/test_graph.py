"""The whole asset graph: nothing in it points to nothing, and every change to it is seen in a review."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from syrupy.assertion import SnapshotAssertion

from georag_assets.components.stages import STAGES
from georag_assets.definitions import build_defs
from georag_assets.index.live import REQUIRED, REQUIRED_WITH_QUERIES
from georag_assets_tests.small_corpora import declare

TEST_CORPORA = Path(__file__).resolve().parent.parent / "corpora"


@pytest.fixture(scope="module")
def graphs() -> dict[str, dg.RepositoryDefinition]:
    """Return the repository of the shipped declarations and of the larger one that tests declare."""
    return {
        "shipped": build_defs().get_repository_def(),
        "stanford_ogm": build_defs(declarations=TEST_CORPORA / "stanford_ogm").get_repository_def(),
    }


def described(repository: dg.RepositoryDefinition) -> dict[str, Any]:
    graph = repository.asset_graph
    assets = {}
    for key in sorted(graph.materializable_asset_keys):
        node = graph.get(key)
        spec = graph.get(key).assets_def.get_asset_spec(key)
        assets[key.to_user_string()] = {
            "after": sorted(parent.to_user_string() for parent in node.parent_keys),
            "checks": {
                check.name: "blocking" if graph.get_check_spec(check).blocking else "informing"
                for check in sorted(graph.get_check_keys_for_assets({key}))
            },
            "code_version": spec.code_version,
            "freshness": str(type(spec.freshness_policy).__name__),
            "group": spec.group_name,
            "kinds": sorted(spec.kinds),
            "owners": list(spec.owners),
        }
    return {
        "assets": assets,
        "jobs": sorted(job.name for job in repository.get_all_jobs()),
        "schedules": sorted(schedule.name for schedule in repository.schedule_defs),
        "sensors": {sensor.name: sensor.default_status.value for sensor in repository.sensor_defs},
    }


@pytest.mark.parametrize("name", ["shipped", "stanford_ogm"])
def test_graph_is_as_reviewed(
    graphs: dict[str, dg.RepositoryDefinition], name: str, snapshot: SnapshotAssertion
) -> None:
    assert described(graphs[name]) == snapshot


@pytest.mark.parametrize("name", ["shipped", "stanford_ogm"])
def test_every_dependency_and_every_check_is_on_an_asset(graphs: dict[str, dg.RepositoryDefinition], name: str) -> None:
    # A typo in either loads without a word.
    graph = graphs[name].asset_graph
    made = graph.materializable_asset_keys
    assert made
    for key in made:
        assert graph.get(key).parent_keys <= made
    assert {check.asset_key for check in graph.asset_check_keys} <= made


def test_every_check_that_a_promotion_requires_is_shown_on_an_asset() -> None:
    before = [stage for stage in STAGES if stage.name != "server_index"]
    shown = {check.name for stage in before for check in stage.checks if check.blocking}
    assert {*REQUIRED, *REQUIRED_WITH_QUERIES} == shown


def test_a_corpus_with_a_server_has_an_asset_for_it_with_every_check_that_is_made_there(tmp_path: Path) -> None:
    declare(tmp_path, "plain", extra="  server: {shards: 2}\n")
    graph = build_defs(declarations=tmp_path).get_repository_def().asset_graph
    key = dg.AssetKey(["plain", "server_index"])
    assert graph.get(key).parent_keys == {dg.AssetKey(["plain", "live_index"])}
    assert {check.name for check in graph.asset_check_keys if check.asset_key == key} == {
        "points_equal_chunks",
        "every_point_names_its_source",
        "spatial_filter_is_indexed",
        "filtered_recall",
        "recall_not_below_embedded",
        "answers_equal_embedded",
    }


def test_a_corpus_without_queries_has_no_evaluation(tmp_path: Path) -> None:
    declare(tmp_path, "plain")
    graph = build_defs(declarations=tmp_path).get_repository_def().asset_graph
    assert dg.AssetKey(["plain", "evaluation"]) not in graph.get_all_asset_keys()
    assert graph.get(dg.AssetKey(["plain", "live_index"])).parent_keys == {dg.AssetKey(["plain", "index_build"])}


def test_code_version_follows_what_decides_content_and_not_where_it_lies(tmp_path: Path) -> None:
    def versions(folder: Path, extra: str = "") -> dict[str, str | None]:
        declare(folder, "plain", extra=extra)
        graph = build_defs(declarations=folder).get_repository_def().asset_graph
        return {key.path[1]: graph.get(key).code_version for key in graph.get_all_asset_keys()}

    here, there = versions(tmp_path / "here"), versions(tmp_path / "there")
    other = versions(tmp_path / "other", extra="  unit: document\n")
    assert here == there
    assert {stage for stage in here if here[stage] != other[stage]} == {"chunks"}


def test_freshness_and_automation_follow_the_declaration(tmp_path: Path) -> None:
    declare(tmp_path, "watched", extra="  automation: {watch: true, cron: 0 3 * * *, timezone: Europe/Zurich}\n")
    declare(tmp_path, "aged", extra="  freshness: {max_age_hours: 24}\n")
    declare(tmp_path, "due", extra='  freshness: {cron: "0 6 * * 1"}\n')
    repository = build_defs(declarations=tmp_path).get_repository_def()
    status = {sensor.name: sensor.default_status for sensor in repository.sensor_defs}
    assert status["watch_watched"] is dg.DefaultSensorStatus.RUNNING
    assert status["watch_aged"] is dg.DefaultSensorStatus.STOPPED
    (schedule,) = repository.schedule_defs
    assert schedule.execution_timezone == "Europe/Zurich"
    graph = repository.asset_graph
    policies = {
        key.to_user_string(): graph.get(key).assets_def.get_asset_spec(key).freshness_policy
        for key in graph.get_all_asset_keys()
    }
    assert {name for name, policy in policies.items() if policy is not None} == {
        f"{corpus}/{stage}" for corpus in ("aged", "due") for stage in ("documents", "corpus_version", "live_index")
    }
