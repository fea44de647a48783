"""One run of a small corpus from new passages to a live build, as a process of its own that a test may kill."""

from __future__ import annotations

from pathlib import Path

from georag_assets.corpus.writer import writing
from georag_assets.home import Home
from georag_assets.index.builds import build_index
from georag_assets.index.live import promote
from georag_assets.settings import Settings
from georag_assets_tests.index.small_corpus import declaration, embedder, run_upstream, write_corpus


def run_to_live(folder: str, seed: int, begun: str = "") -> str:
    """Add three passages, run every stage, promote; touch `begun` once the work starts. Returns the build."""
    home = Home(Settings(home=Path(folder)))
    with writing(home, "small"):
        if begun:
            Path(begun).touch()
        made, _ = embedder()
        write_corpus(home, 3, seed=seed)
        run_upstream(home, made)
        build = str(build_index(home, declaration(), embedder=made).metadata["build"])
        promote(home, "small", build)
    return build
