"""A citation outlives the passage it names (case r42)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.models import CHUNKS
from georag_assets.errors import QueryError
from georag_assets.home import Home
from georag_assets.index.embedding import Embedder
from georag_assets.index.live import rollback
from georag_assets.operations.pipeline import build_corpus
from georag_assets.retrieval.citation import resolve_citation


def test_an_old_chunk_id_resolves_through_its_version_and_says_that_it_is_superseded(
    tmp_path: Any, home: Home, case: Callable[[str], Any]
) -> None:
    r42 = case("r42")
    lock = "The lock was closed in 1974."
    source = tmp_path / "report-7.md"
    # A section each, so that each passage of the case is a chunk.
    declaration = CorpusDeclaration.model_validate(
        {"name": "reports", "sources": ["report-7.md"], "unit": "section"}, context={"folder": tmp_path}
    )
    embedder = Embedder.load(home.settings)

    def build(version: str) -> None:
        passages = r42["input"][version]
        sections = (f"# {' '.join(passage.split()[:2])}\n\n{passage}\n" for passage in passages)
        source.write_text("\n".join(sections), encoding="utf-8")
        assert not any(report.blocked for report in build_corpus(home, declaration, embedder=embedder))

    def cited() -> str:
        rows = home.tables.read("reports", CHUNKS, columns=["chunk_id", "text"]).to_pylist()
        (found,) = [row["chunk_id"] for row in rows if lock in row["text"]]
        return str(found)

    build("v1")
    chunk_id = cited()
    first = resolve_citation(home, "reports", chunk_id)
    assert not first.superseded
    assert lock in first.text

    build("v2")
    assert cited() == chunk_id
    second = resolve_citation(home, "reports", chunk_id)
    assert (second.text.strip(), second.superseded) == (first.text.strip(), False)
    assert second.start > first.start  # the preface moved it: an id that were a position would name another passage

    build("v3")
    third = resolve_citation(home, "reports", chunk_id)
    assert third.text.strip().splitlines()[-1] == r42["expected"]["in_v3"]["text"]
    assert third.superseded
    assert third.corpus_version == second.corpus_version

    rollback(home, "reports")
    assert not resolve_citation(home, "reports", chunk_id).superseded
    with pytest.raises(QueryError, match="no indexed version"):
        resolve_citation(home, "reports", "00000000-0000-0000-0000-000000000000")
