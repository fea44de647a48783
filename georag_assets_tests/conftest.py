"""Fixtures that every room's tests share: the folder of real data, a fresh home."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from georag_assets import workers
from georag_assets.home import Home
from georag_assets.places.gazetteer import world
from georag_assets.settings import Settings


@dataclass(frozen=True)
class RealServer:
    """The Qdrant server that the environment names, if any; for `test_real_server.py` alone."""

    url: str | None
    key: str | None
    certificates: str | None


# How long an example takes is no property of the code: a benchmark's matter.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Taken out of the environment: every other test decides for itself which server there is.
REAL_SERVER = RealServer(*(os.environ.pop(f"GEORAG_QDRANT_{name}", None) or None for name in ("URL", "API_KEY", "CA")))
REPOSITORY = Path(__file__).resolve().parent.parent


def shared_folder() -> Path | None:
    """Return the folder of real data: GEORAG_SHARED, or `shared` beside the checkout; None where there is none."""
    stated = os.environ.get("GEORAG_SHARED")
    folder = Path(stated) if stated else REPOSITORY.parent / "shared"
    return folder if (folder / "data").is_dir() else None


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real data; where it is absent the test skips, except in CI, where that is a failure."""
    folder = shared_folder()
    if folder is None:
        message = "the folder of real data is absent: set GEORAG_SHARED or lay it beside the checkout"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def case(shared: Path) -> Callable[[str], dict[str, object]]:
    """Return a case from public bug reports by id, its `input` parsed where it is JSON."""
    cases = {}
    for line in (shared / "cases" / "cases_open.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if isinstance(record["input"], str):
            with contextlib.suppress(ValueError):
                record["input"] = json.loads(record["input"])
        cases[record["id"]] = record
    return cases.__getitem__


@pytest.fixture(scope="session")
def converted_models(pytestconfig: pytest.Config) -> Path:
    """Folder of converted models that outlives a test run: converting takes longer than most tests."""
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("georag-models")


@pytest.fixture(scope="session")
def fresh_home(pytestconfig: pytest.Config, converted_models: Path) -> Callable[[Path], Home]:
    """Return a function that makes a home, empty but for what outlives a test run: converted models, the gazetteer."""
    assert pytestconfig.cache is not None
    gazetteer = world(Home(Settings(home=pytestconfig.cache.mkdir("georag-gazetteer")))).file

    def make(root: Path) -> Home:
        (root / "places").mkdir(parents=True)
        (root / "models").symlink_to(converted_models)
        (root / "places" / gazetteer.name).symlink_to(gazetteer)
        return Home(Settings(home=root))

    return make


@pytest.fixture
def home(tmp_path: Path, fresh_home: Callable[[Path], Home]) -> Home:
    """Return a fresh home in a temporary folder."""
    return fresh_home(tmp_path / "home")


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Return a temporary folder that other users may enter (`tmp_path` is closed to them)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def workers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start worker processes before the first item, and wait for them: all work is then theirs."""
    monkeypatch.setattr(workers, "PATIENCE_S", 0.0)
    ready = workers.Workers._ready

    def awaited(self: workers.Workers) -> bool:
        ready(self)
        return bool(self._starting) and all(answer.result() for answer in self._starting)

    monkeypatch.setattr(workers.Workers, "_ready", awaited)
