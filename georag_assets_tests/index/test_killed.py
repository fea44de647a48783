"""kill -9 at random moments of a run: what is live answers before, during and after, and the next run succeeds."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from georag_assets.home import Home
from georag_assets.index import folders, manifest
from georag_assets.index.builds import open_build
from georag_assets.index.live import live_build, live_state
from georag_assets.index.models import LexicalQuery, SearchFilter
from georag_assets_tests.index.run_to_live import run_to_live

MOMENTS = 16
SEED = 20_260_730


def live_answers(home: Home) -> str:
    """Open what is live, verified to the last byte, and ask it; return its name."""
    name = live_build(home, "small")
    assert name is not None
    manifest.verify(folders.build_folder(home, "small", name))
    with open_build(home, "small") as opened:
        assert opened.columns.count == opened.manifest.counts["points"] > 0
        assert opened.search(LexicalQuery("weir"), SearchFilter(), 3).hits
        return opened.manifest.build


def wait_for(path: Path, process: multiprocessing.process.BaseProcess) -> None:
    while not path.exists():
        assert process.is_alive()
        time.sleep(0.01)


@pytest.mark.slow
def test_kill_9_at_random_moments(home: Home, tmp_path: Path) -> None:
    # A fork server that has the imports: a run is then its work, and no moment is spent on importing.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["georag_assets_tests.index.run_to_live", "pyiceberg.catalog.sql", "qdrant_edge"])
    moments = random.Random(SEED)
    folder = str(home.root)
    run_to_live(folder, 0)
    durations = []
    killed = finished = 0
    reader = open_build(home, "small")
    for number in range(1, MOMENTS + 4):
        before = live_answers(home)
        begun = tmp_path / f"begun-{number}"
        process = context.Process(target=run_to_live, args=(folder, number, str(begun)))
        started = time.monotonic()
        process.start()
        wait_for(begun, process)
        if number <= 3:  # whole runs first, to know how long one takes
            process.join()
            assert process.exitcode == 0
            durations.append(time.monotonic() - started)
            assert live_answers(home) != before
            continue
        # The quickest run so far: a span measured on a busy machine would mostly be slept past the end.
        time.sleep(moments.uniform(0, min(durations)))
        assert live_answers(home)
        assert process.pid is not None
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:
            finished += 1
            durations.append(time.monotonic() - started)
        after = live_answers(home)
        state = live_state(home, "small")
        assert state is not None
        assert after in {before, state.build}
        # Whatever has a build's name is whole.
        for complete in folders.complete_builds(home, "small"):
            manifest.verify(folders.build_folder(home, "small", complete.build))
        named = {path.name for path in home.builds_folder("small").iterdir() if not path.name.startswith(".")}
        assert named == {complete.build for complete in folders.complete_builds(home, "small")}
    assert killed + finished == MOMENTS
    assert killed >= MOMENTS // 2
    assert reader.search(LexicalQuery("weir"), SearchFilter(), 3).hits
    reader.close()
    last = run_to_live(folder, 99)
    assert live_answers(home) == last
    assert not [path for path in home.builds_folder("small").iterdir() if path.name.startswith((".staging", ".disc"))]
