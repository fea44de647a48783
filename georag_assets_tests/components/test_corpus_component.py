"""The component where users meet it: in their own Dagster project, and with a declaration that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest

from georag_assets.components import Corpus
from georag_assets.definitions import build_defs
from georag_assets.errors import DeclarationError
from georag_assets_tests.small_corpora import declare

NAME = "their_project"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty Dagster project that knows georag_assets only as an installed package."""
    package = tmp_path / NAME / "defs"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{NAME}"\n', encoding="utf-8"
    )
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


def written(project: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = project / NAME / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def test_two_corpora_load_in_a_project_of_ones_own(project: Path) -> None:
    for corpus in ("wells", "springs"):
        declare(project / NAME / "defs", corpus)
    loaded = dg.load_from_defs_folder(path_within_project=project)
    repository = loaded.get_repository_def()
    keys = repository.asset_graph.get_all_asset_keys()
    assert dg.AssetKey(["wells", "live_index"]) in keys
    assert dg.AssetKey(["springs", "documents"]) in keys
    assert {"build_wells", "build_springs"} <= {job.name for job in repository.get_all_jobs()}
    assert set(loaded.resources or {}) == {"georag_home"}


def test_a_single_component_serves_a_project_without_components(tmp_path: Path) -> None:
    from georag_assets.corpus.declaration import load_declaration

    corpus = declare(tmp_path, "wells")
    loaded = dg.build_defs_for_component(Corpus(load_declaration(corpus / "defs.yaml")))
    assert len(loaded.get_repository_def().asset_graph.get_all_asset_keys()) == 7


def test_the_component_tells_tools_its_fields() -> None:
    schema = Corpus.get_model_cls().model_json_schema()
    assert {"name", "sources", "quarantine_threshold"} <= set(schema["properties"])


def test_o24_every_wrong_declaration_is_named_at_once(project: Path, case: Callable[[str], dict[str, object]]) -> None:
    found = case("o24")
    files = found["input"]
    assert isinstance(files, dict)
    written(project, files)

    with pytest.raises(Exception) as raised:
        dg.load_from_defs_folder(path_within_project=project).get_repository_def()
    (ours,) = [error for error in causes(raised.value) if isinstance(error, DeclarationError)]
    message = str(ours)
    for name in ("defs/a/defs.yaml", "defs/b/defs.yaml"):
        assert name in message
    for key, meant in {"quarantine_treshold": "quarantine_threshold", "source": "sources"}.items():
        assert key in message
        assert meant in message
    assert "defs/c/defs.yaml" not in message

    with pytest.raises(DeclarationError) as direct:
        build_defs(declarations=project / NAME / "defs")
    assert "defs/a/defs.yaml" in str(direct.value)
    assert "defs/b/defs.yaml" in str(direct.value)


@pytest.mark.parametrize("identity", ["o22", "o23"])
def test_what_yaml_would_change_in_silence_does_not_load(
    project: Path, case: Callable[[str], dict[str, object]], identity: str
) -> None:
    files = case(identity)["input"]
    assert isinstance(files, dict)
    written(project, {"defs/ava/defs.yaml": files["defs.yaml"]})
    with pytest.raises(Exception) as raised:
        dg.load_from_defs_folder(path_within_project=project).get_repository_def()
    (ours,) = [error for error in causes(raised.value) if isinstance(error, DeclarationError)]
    assert "defs.yaml" in str(ours)
    assert {"o22": "sources", "o23": "epsg"}[identity] in str(ours)


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ('  freshness: {cron: "61 * * * *"}\n', "freshness"),
        ("  freshness: {cron: 0 6 * * *, timezone: Mars/Olympus}\n", "freshness"),
        ('  automation: {cron: "every day"}\n', "automation"),
        ("  automation: {cron: 0 6 * * *, timezone: Mars/Olympus}\n", "automation"),
    ],
)
def test_a_cron_that_dagster_refuses_names_file_and_key(tmp_path: Path, extra: str, key: str) -> None:
    declare(tmp_path, "wells", extra=extra)
    with pytest.raises(DeclarationError) as raised:
        build_defs(declarations=tmp_path)
    assert "wells/defs.yaml" in str(raised.value)
    assert f"{key}:" in str(raised.value)
