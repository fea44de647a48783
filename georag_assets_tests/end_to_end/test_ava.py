"""The bundled corpus, whole, on a real instance: what `make demo` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from georag_assets.components import HomeResource
from georag_assets.components.stages import STAGES
from georag_assets.corpus.versions import newest_version
from georag_assets.definitions import build_defs
from georag_assets.home import Home
from georag_assets.index.builds import open_build
from georag_assets.index.live import REQUIRED, live_state
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever


@pytest.fixture(scope="module")
def ava(
    tmp_path_factory: pytest.TempPathFactory, fresh_home: Callable[[Path], Home]
) -> Iterator[tuple[Home, dg.ExecuteInProcessResult]]:
    """Return the home and the run that built the corpus in it."""
    folder = tmp_path_factory.mktemp("ava")
    home = fresh_home(folder / "home")
    defs = build_defs({"georag_home": HomeResource(root=str(home.root))})
    with dg.DagsterInstance.local_temp(str(folder)) as instance:
        yield home, defs.resolve_job_def("build_ava").execute_in_process(instance=instance)


@pytest.mark.slow
def test_every_asset_is_made_and_every_check_passes(ava: tuple[Home, dg.ExecuteInProcessResult]) -> None:
    _home, result = ava
    made = {event.asset_key.path[1]: event.materialization for event in result.get_asset_materialization_events()}
    assert list(made) == [stage.name for stage in STAGES if stage.name not in ("evaluation", "server_index")]
    checks = result.get_asset_check_evaluations()
    assert {check.check_name for check in checks if not check.passed} == set()
    assert set(REQUIRED) <= {check.check_name for check in checks}

    documents = {name: value.value for name, value in made["documents"].metadata.items()}
    assert documents["documents"] == documents["documents_with_geometry"] == 184
    for stage, materialization in made.items():
        assert materialization.tags["dagster/data_version"], stage
        assert materialization.tags["dagster/code_version"].startswith(f"{stage}-")
        assert materialization.metadata["seconds"].value > 0
    build = {name: value.value for name, value in made["index_build"].metadata.items()}
    assert {"build", "points"} <= set(build)


@pytest.mark.slow
def test_what_is_live_is_what_was_built(ava: tuple[Home, dg.ExecuteInProcessResult]) -> None:
    home, _ = ava
    live = live_state(home, "ava")
    assert live is not None
    assert live.corpus_version == newest_version(home, "ava")
    with open_build(home, "ava") as opened:
        assert all(opened.manifest.check(name) is not None for name in REQUIRED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ("boundary along the county line", "Napa Valley", "docs/napa_valley.md"),
        ("Peachy Canyon Road and the Salinas River", "Adelaida District", "docs/adelaida_district.md"),
    ],
)
def test_a_named_place_is_found_in_the_corpus_itself(
    ava: tuple[Home, dg.ExecuteInProcessResult], words: str, place: str, expected: str
) -> None:
    home, _ = ava
    with Retriever(home, ("ava",)) as retriever:
        answer = retriever.search(Question(words, place=place))
    assert answer.candidates[0].doc_id == expected
    assert {candidate.corpus_version for candidate in answer.candidates} == {newest_version(home, "ava")}
