"""One run of a small corpus from new passages to a live build, as a process of its own that a test may kill."""

from __future__ import annotations

from pathlib import Path

from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.corpus.writer import writing
from georag_assets.home import Home
from georag_assets.index.builds import build_index
from georag_assets.index.live import promote
from georag_assets.settings import Settings
from georag_assets.tables.iceberg import TableSpec
from georag_assets_tests.index.small_corpus import declaration, embedder, remove_documents, run_upstream, write_corpus


def run_to_live(folder: str, seed: int, begun: str = "") -> str:
    """Add three passages, run every stage, promote; touch `begun` once the work starts. Returns the build."""
    home = Home(Settings(home=Path(folder)))
    with writing(home, "small"):
        if begun:
            Path(begun).touch()
        made, _ = embedder()
        # Those of a run that was killed halfway: the real stages would go on with them.
        unfinished = _doc_ids(home, DOCUMENTS) ^ _doc_ids(home, CHUNKS)
        remove_documents(home, sorted(unfinished))
        write_corpus(home, 3, seed=seed)
        run_upstream(home, made)
        build = str(build_index(home, declaration(), embedder=made).metadata["build"])
        promote(home, "small", build)
    return build


def _doc_ids(home: Home, spec: TableSpec) -> set[str]:
    return set(home.tables.read("small", spec, columns=["doc_id"])["doc_id"].to_pylist())
