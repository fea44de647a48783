"""Chunking and framing in several processes: row for row what one process makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from georag_assets import workers
from georag_assets.corpus.chunk_stage import chunk_corpus
from georag_assets.corpus.declaration import load_declaration
from georag_assets.corpus.documents import sync_documents
from georag_assets.corpus.models import CHUNKS
from georag_assets.corpus.versions import publish_version
from georag_assets.definitions import OWN_DECLARATIONS
from georag_assets.frames.models import FRAMES
from georag_assets.frames.stage import frame_corpus
from georag_assets.home import Home
from georag_assets.reports import StageReport


def chunked_and_framed(home: Home, count: int) -> tuple[StageReport, StageReport]:
    home = Home(home.settings.model_copy(update={"workers": count}))
    ava = load_declaration(OWN_DECLARATIONS / "ava" / "defs.yaml")
    sync_documents(home, ava)
    publish_version(home, ava)
    return chunk_corpus(home, ava), frame_corpus(home, ava)


@pytest.mark.usefixtures("workers_at_once")
def test_rows_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, fresh_home: Callable[[Path], Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    pool = workers._pool
    monkeypatch.setattr(workers, "_pool", lambda count: (started.append(count), pool(count))[1])
    one, three = fresh_home(tmp_path / "one"), fresh_home(tmp_path / "three")
    in_one, in_three = chunked_and_framed(one, 1), chunked_and_framed(three, 3)
    assert started == [3, 3]
    for spec in (CHUNKS, FRAMES):
        rows = [home.tables.read("ava", spec) for home in (one, three)]
        assert rows[0].num_rows > 276
        assert rows[0].equals(rows[1]), "the same rows in the same order"
    for alone, together in zip(in_one, in_three, strict=True):
        assert (alone.data_version, alone.counts, alone.checks) == (
            together.data_version,
            together.counts,
            together.checks,
        )
