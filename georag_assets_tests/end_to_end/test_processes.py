"""Runs in processes of their own: killed at any moment, two at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from georag_assets.corpus.versions import newest_version
from georag_assets.home import Home
from georag_assets.index.builds import open_build
from georag_assets.index.folders import STAGING
from georag_assets.index.live import live_state
from georag_assets.retrieval.question import Question
from georag_assets.retrieval.retriever import Retriever
from georag_assets_tests.small_corpora import declare

CORPUS = "field_notes"
KILLS = 4


@pytest.fixture
def declarations(tmp_path: Path) -> Path:
    """Return a folder with two small corpora declared in it."""
    folder = tmp_path / "declared"
    declare(folder, CORPUS)
    declare(folder, "other_notes")
    return folder


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    """Return the folder of a Dagster instance whose databases exist: two runs that make them at once collide."""
    folder = tmp_path / "dagster_home"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    with dg.DagsterInstance.from_config(str(folder)) as instance:
        instance.get_run_records(limit=1)
        instance.get_latest_materialization_event(dg.AssetKey([CORPUS, "documents"]))
    return folder


def start(corpus: str, declarations: Path, home: Home, dagster_home: Path) -> subprocess.Popen[str]:
    """Start a run as `make demo` does, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "dagster", "job", "execute", "-m", "georag_assets.definitions", "-j", f"build_{corpus}"],
        env={
            **os.environ,
            "GEORAG_HOME": str(home.root),
            "GEORAG_DECLARATIONS": str(declarations),
            "DAGSTER_HOME": str(dagster_home),
            "HF_HUB_OFFLINE": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(run: subprocess.Popen[str]) -> str:
    """Wait for a run and return its output; it succeeded."""
    output, _ = run.communicate(timeout=240)
    assert run.returncode == 0, output
    return output


def first_answer(home: Home) -> str:
    with Retriever(home, (CORPUS,)) as retriever:
        return retriever.search(Question("limestone quarry northern face", place_from_words=False)).candidates[0].doc_id


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_the_old_index_answering(
    declarations: Path, home: Home, dagster_home: Path
) -> None:
    started = time.monotonic()
    finish(start(CORPUS, declarations, home, dagster_home))
    whole = time.monotonic() - started

    moments = random.Random(1961)
    for number in range(KILLS):
        before = live_state(home, CORPUS)
        (declarations / CORPUS / "docs" / "weir.md").write_text(f"The weir, state {number}.\n", encoding="utf-8")
        run = start(CORPUS, declarations, home, dagster_home)
        # Each kill in a part of the run of its own; the first seconds are imports, where nothing can go wrong yet.
        until = time.monotonic() + whole * (0.35 + 0.6 * (number + moments.random()) / KILLS)
        while time.monotonic() < until:
            assert first_answer(home) == "docs/quarry.md"
            time.sleep(0.2)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)

        after = live_state(home, CORPUS)
        assert before is not None
        assert after is not None
        if run.returncode == -signal.SIGKILL and after.build != before.build:
            assert after.corpus_version == newest_version(home, CORPUS), "promotion was the last thing that happened"
        with open_build(home, CORPUS) as opened:
            assert opened.manifest.build == after.build
        assert first_answer(home) == "docs/quarry.md"

    finish(start(CORPUS, declarations, home, dagster_home))
    live = live_state(home, CORPUS)
    assert live is not None
    assert live.corpus_version == newest_version(home, CORPUS)
    assert not [path for path in home.builds_folder(CORPUS).iterdir() if path.name.startswith(STAGING)]
    assert first_answer(home) == "docs/quarry.md"


@pytest.mark.slow
def test_two_runs_on_one_corpus_and_one_on_another(declarations: Path, home: Home, dagster_home: Path) -> None:
    runs = [start(CORPUS, declarations, home, dagster_home) for _ in range(2)]
    other = start("other_notes", declarations, home, dagster_home)
    outputs = [run.communicate(timeout=240)[0] for run in runs]
    finish(other)

    # Started a moment apart, one may even begin after the other has ended; whoever was second while the first held the
    # corpus was told whose it is.
    refused = [number for number, run in enumerate(runs) if run.returncode != 0]
    assert len(refused) <= 1
    for number in refused:
        assert f"corpus {CORPUS} is being written by pid {runs[1 - number].pid}" in outputs[number]
    assert live_state(home, CORPUS)
    assert live_state(home, "other_notes")
