"""A small corpus of real documents with polygons beside them, that a test may change as a source changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import shapely

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.home import Home
from georag_assets.index.embedding import Embedder
from georag_assets.operations.pipeline import build_corpus
from georag_assets.reports import StageReport

AVA = Path(__file__).resolve().parents[2] / "georag_assets" / "defs" / "ava"
NAMES = ("napa_valley", "howell_mountain_19840130", "long_island", "altus", "isle_st__george", "cole_ranch")


class Corpus:
    """Six viticultural areas: their texts, their polygons, their home."""

    def __init__(self, folder: Path, home: Home, embedder: Embedder | None = None) -> None:
        self.folder = folder
        self.home = home
        self.embedder = embedder or Embedder.load(home.settings)
        (folder / "docs").mkdir(parents=True)
        for name in NAMES:
            shutil.copy(AVA / "docs" / f"{name}.md", folder / "docs")
        import geopandas

        polygons = geopandas.read_parquet(AVA / "ava_polygons.parquet")
        self.polygons = polygons[polygons["id"].isin(NAMES)].copy()
        self.save_polygons()
        self.declaration = CorpusDeclaration.model_validate(
            {
                "name": "small",
                "sources": ["docs/*.md"],
                "geometry": {"sidecar": "polygons.parquet", "key": "stem", "id": "id"},
                "removal_threshold": 0.5,
            },
            context={"folder": folder},
        )

    def text(self, name: str) -> Path:
        return self.folder / "docs" / f"{name}.md"

    def save_polygons(self) -> None:
        self.polygons.to_parquet(self.folder / "polygons.parquet")

    def move_polygon(self, name: str, east: float) -> None:
        mine = self.polygons["id"] == name
        self.polygons.loc[mine, "geometry"] = [
            shapely.transform(shape, lambda xy: xy + np.array([east, 0.0]))
            for shape in self.polygons.loc[mine, "geometry"]
        ]
        self.save_polygons()

    def build(self) -> dict[str, StageReport]:
        reports = build_corpus(self.home, self.declaration, embedder=self.embedder)
        return {report.stage: report for report in reports}


@pytest.fixture
def corpus(tmp_path: Path, home: Home) -> Corpus:
    """Return the corpus, not built yet."""
    return Corpus(tmp_path / "source", home)
