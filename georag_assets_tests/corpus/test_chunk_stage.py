"""The stage `chunks` on tables: only what changed, what is malformed left out with its reason, faults that block."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from georag_assets.corpus import chunk_stage, chunking
from georag_assets.corpus.chunk_stage import chunk_corpus
from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.documents import sync_documents
from georag_assets.corpus.models import CHUNKS, QUARANTINE
from georag_assets.corpus.versions import publish_version
from georag_assets.errors import TableError
from georag_assets.home import Home
from georag_assets.reports import CheckResult, StageReport

RING = "POLYGON ((7 46, 7.1 46, 7.1 46.1, 7 46.1, 7 46))"


@dataclass
class Corpus:
    """A corpus of Markdown files that can be changed and chunked again."""

    home: Home
    folder: Path
    settings: dict[str, Any]

    def write(self, **texts: str | None) -> None:
        for name, text in texts.items():
            path = self.folder / f"{name}.md"
            if text is None:
                path.unlink()
            else:
                path.write_text(text, encoding="utf-8")

    @property
    def declaration(self) -> CorpusDeclaration:
        return CorpusDeclaration.model_validate(
            {"name": "weirs", "sources": [str(self.folder / "*.md")], "removal_threshold": 1.0, **self.settings}
        )

    def chunk(self) -> StageReport:
        sync_documents(self.home, self.declaration)
        publish_version(self.home, self.declaration)
        return chunk_corpus(self.home, self.declaration)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in self.home.tables.read("weirs", CHUNKS).to_pylist():
            rows.setdefault(row["doc_id"], []).append(row)
        return rows

    def ids(self) -> dict[str, set[str]]:
        return {doc_id: {row["chunk_id"] for row in rows} for doc_id, rows in self.rows().items()}


@pytest.fixture
def corpus(home: Home, tmp_path: Path) -> Corpus:
    folder = tmp_path / "docs"
    folder.mkdir()
    made = Corpus(home, folder, {"quarantine_threshold": 0.5})
    made.write(
        alder=f"# Alder weir\n\nIts plot is {RING}.\n\n## History\n\nRaised in 1961.\n",
        birch="# Birch weir\n\nAt 47.0551, 8.3093 near the lock.\n",
        cedar="# Cedar weir\n\nNo place is known.\n",
    )
    return made


def check(report: StageReport, name: str) -> CheckResult:
    return next(each for each in report.checks if each.name == name)


def test_rows_hold_slices_literals_and_what_is_embedded(corpus: Corpus) -> None:
    report = corpus.chunk()
    assert not report.blocked
    assert report.counts["new"] == 4
    rows = corpus.rows()
    alder = sorted(
        (row for key, found in rows.items() if "alder" in key for row in found), key=lambda row: row["start"]
    )
    assert "".join(row["text"] for row in alder) == (corpus.folder / "alder.md").read_text(encoding="utf-8")
    assert "polygon of 5 vertices around" in alder[0]["embedded_text"]
    assert RING in alder[0]["literals_json"]
    assert alder[1]["context"] == "Alder weir"
    assert all(row["token_count"] <= 256 and len(row["embedded_sha256"]) == 64 for row in alder)


def test_only_a_changed_document_is_chunked_and_earlier_ids_return(corpus: Corpus) -> None:
    first = corpus.chunk()
    before = corpus.ids()
    again = corpus.chunk()
    assert (again.counts["new"], again.counts["reused"]) == (0, 4)
    assert (again.data_version, again.snapshot_id) == (first.data_version, first.snapshot_id)

    corpus.write(birch="# Birch weir\n\nAt 47.0552, 8.3093 near the lock.\n")
    changed = corpus.chunk()
    assert (changed.counts["new"], changed.counts["reused"], changed.counts["documents"]) == (1, 3, 1)
    assert changed.data_version != first.data_version
    after = corpus.ids()
    assert {key for key in before if before[key] != after[key]} == {key for key in before if "birch" in key}

    corpus.write(birch="# Birch weir\n\nAt 47.0551, 8.3093 near the lock.\n")
    assert corpus.chunk().data_version == first.data_version
    assert corpus.ids() == before


def test_a_removed_document_s_chunks_leave(corpus: Corpus) -> None:
    corpus.chunk()
    corpus.write(alder=None)
    report = corpus.chunk()
    assert report.counts["removed"] == 2
    assert not any("alder" in key for key in corpus.rows())


def test_another_budget_or_unit_chunks_everything_anew(corpus: Corpus) -> None:
    corpus.chunk()
    corpus.settings["unit"] = "document"
    report = corpus.chunk()
    assert report.counts["documents"] == 3
    assert report.counts["new"] == 3


@pytest.mark.parametrize(
    ("literal", "why"),
    [
        ("POLYGON ((7 46, 7.1 46, 7.1 46.1))", "a ring does not end where it begins"),
        ("POLYGON ((7 46, 7.1 46, 7.1 46.1 was granted", "never closed"),
        ('{"type":"Point","coordinates":[NaN,47.1]}', "NaN or infinite"),
    ],
)
def test_malformed_geometry_is_quarantined_with_file_and_offset(corpus: Corpus, literal: str, why: str) -> None:
    corpus.write(dogwood=f"# Dogwood weir\n\nIts plot is {literal}.\n")
    report = corpus.chunk()
    assert not report.blocked
    assert report.counts["quarantined"] == 1
    assert not any("dogwood" in key for key in corpus.rows())
    (row,) = corpus.home.tables.read("weirs", QUARANTINE).to_pylist()
    assert "dogwood.md" in row["location"]
    assert row["location"].endswith("@28")
    assert "line 3, offset 28" in row["reason"]
    assert why in row["reason"]
    assert chunk_corpus(corpus.home, corpus.declaration).counts["quarantined"] == 1

    corpus.write(dogwood=f"# Dogwood weir\n\nIts plot is {RING}.\n")
    mended = corpus.chunk()
    assert mended.counts["quarantined"] == 0
    assert corpus.home.tables.read("weirs", QUARANTINE).num_rows == 0


def test_too_much_quarantine_blocks(corpus: Corpus) -> None:
    corpus.settings["quarantine_threshold"] = 0.1
    corpus.write(dogwood="Its plot is POLYGON ((7 46, 7.1 46, 7.1 46.1)).\n")
    report = corpus.chunk()
    assert report.blocked
    assert not check(report, "chunks_cover_documents").passed


def test_a_severed_ring_blocks_and_goes_on_blocking(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault planted: a cutter that does not know where geometries are."""

    def blind(*arguments: Any, **options: Any) -> Any:
        options["literals"] = ()
        options["budget"] = 16
        return chunking.chunk_document(*arguments, **options)

    with monkeypatch.context() as planted:
        planted.setattr(chunk_stage, "chunk_document", blind)
        report = corpus.chunk()
        assert report.blocked
        failed = check(report, "every_geometry_parses")
        assert not failed.passed
        assert failed.numbers["faults"] == 2
        assert any("alder" in fault for fault in failed.detail["faults"])  # type: ignore[attr-defined]
        assert not check(chunk_corpus(corpus.home, corpus.declaration), "every_geometry_parses").passed
    mended = chunk_corpus(corpus.home, corpus.declaration)
    assert not mended.blocked
    assert mended.counts["documents"] == 2


def test_a_lost_slice_blocks(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault planted: the last chunk of each document is not written."""
    real = chunking.chunk_document
    monkeypatch.setattr(chunk_stage, "chunk_document", lambda *arguments, **options: real(*arguments, **options)[:-1])
    report = corpus.chunk()
    assert report.blocked
    failed = check(report, "chunks_cover_documents")
    assert not failed.passed
    assert failed.numbers["faults"] == 3


def test_text_that_is_never_embedded_fails_a_check_that_does_not_block(corpus: Corpus) -> None:
    corpus.write(alder="| " + "word " * 2000 + "|\n")
    report = corpus.chunk()
    failed = check(report, "truncated_share")
    assert not failed.passed
    assert failed.severity == "WARN"
    assert failed.numbers["never_embedded_share"] > 0.5
    assert failed.numbers["truncated_share"] > 0
    assert not report.blocked


def test_without_a_version_it_says_what_to_do(corpus: Corpus) -> None:
    with pytest.raises(TableError, match="no version yet"):
        chunk_corpus(corpus.home, corpus.declaration)
