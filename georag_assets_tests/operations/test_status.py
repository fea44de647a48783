"""The numbers an operator looks at first."""

from __future__ import annotations

import dataclasses

from georag_assets.home import Home
from georag_assets.index.folders import build_folder
from georag_assets.index.live import live_build
from georag_assets.operations.status import corpus_status, status
from georag_assets.settings import Settings


def test_a_document_that_a_later_stage_quarantines_is_one_document(corpus):
    texts = corpus.folder / "docs"
    (texts / "severed.md").write_text("POLYGON ((0 0, 1 0, 1 1))\n", encoding="utf-8")
    (texts / "empty.md").write_bytes(b"")
    corpus.declaration = corpus.declaration.model_copy(update={"quarantine_threshold": 0.5})
    corpus.build()
    found = corpus_status(corpus.home, "small", corpus.declaration)
    assert (found.quarantined, found.quarantine_rate) == (2, 0.25)  # of the six good ones and these two


def test_a_broken_corpus_is_told_and_hides_no_other(corpus):
    corpus.build()
    declared = {"small": corpus.declaration, "other": corpus.declaration.model_copy(update={"name": "other"})}
    pointer = corpus.home.live_pointer("small")
    kept = pointer.read_bytes()
    pointer.write_text("[]", encoding="utf-8")
    other, small = status(corpus.home, declared)
    assert (other.state, other.fault) == ("never_built", None)
    assert small.state == "broken" and "live pointer" in small.fault

    pointer.write_bytes(kept)
    assert corpus_status(corpus.home, "small").state == "live"
    build_folder(corpus.home, "small", live_build(corpus.home, "small")).joinpath("manifest.json").write_text("{}")
    small = corpus_status(corpus.home, "small")
    assert small.state == "broken" and "manifest" in small.fault
    assert dataclasses.asdict(small)["live_build"]


def test_a_home_that_is_a_file_has_nothing_live(tmp_path):
    (tmp_path / "file").touch()
    assert live_build(Home(Settings(home=tmp_path / "file")), "small") is None
