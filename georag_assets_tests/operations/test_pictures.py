"""Pictures of a built corpus: each stage shows what its tables hold."""

from __future__ import annotations

from pathlib import Path

from georag_assets.corpus.declaration import load_declaration
from georag_assets.home import Home
from georag_assets.operations.drawing import INLINE_LIMIT
from georag_assets.operations.pictures import pictures
from georag_assets.operations.pipeline import build_corpus
from georag_assets_tests.small_corpora import declare

EXPECTED = {
    "documents": {"sample"},
    "corpus_version": set(),
    "chunks": {"sizes", "sample"},
    "frames": {"map", "map_large", "grades", "sample"},
    "embeddings": {"sizes"},
    "index_build": {"map", "map_large", "sizes"},
    "live_index": {"map", "map_large"},
}


def test_each_stage_shows_its_own_and_a_trend_from_the_second_run_on(home: Home, tmp_path: Path) -> None:
    declaration = load_declaration(declare(tmp_path / "corpora", "small") / "defs.yaml")
    build_corpus(home, declaration)
    shown = {report.stage: pictures(home, report) for report in build_corpus(home, declaration)}
    assert {stage: set(drawn) - {"trend"} for stage, drawn in shown.items()} == EXPECTED
    assert all("trend" in drawn for drawn in shown.values())
    assert all(
        len(markdown) <= INLINE_LIMIT
        for drawn in shown.values()
        for name, markdown in drawn.items()
        if name != "map_large"
    )
    assert shown["frames"]["map"].endswith("6 chunks with an extent, of 6; 7.59 to 8.73 east, 46.53 to 47.56 north")
    assert "docs/orchard.md" in shown["chunks"]["sample"]
    assert "last 2 runs" in shown["documents"]["trend"]


def test_a_corpus_without_geometry_has_no_map(home: Home, tmp_path: Path) -> None:
    corpus = declare(tmp_path / "corpora", "small")
    for file in (corpus / "docs").iterdir():
        file.write_text("Nothing that has a place: a | bar, a <tag>, a [link].\n", encoding="utf-8")
    reports = build_corpus(home, load_declaration(corpus / "defs.yaml"))
    shown = {report.stage: pictures(home, report) for report in reports}
    assert "map" not in shown["frames"]
    assert shown["frames"]["grades"].splitlines()[-1].startswith("unresolved")
    assert r"a \| bar, a &lt;tag>, a \[" in shown["chunks"]["sample"]
