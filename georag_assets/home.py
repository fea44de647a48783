"""The home folder: where each thing of an installation lies, and nothing about what is in it.

What belongs here: paths under `GEORAG_HOME`. What does not: opening or writing them (their rooms).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from georag_assets.settings import Settings
from georag_assets.tables.iceberg import Tables


@dataclass(frozen=True)
class Home:
    """Paths and tables of one installation; cheap to make, opens nothing until asked."""

    settings: Settings

    @property
    def root(self) -> Path:
        """Absolute path of the home folder."""
        return self.settings.home.expanduser().absolute()

    @cached_property
    def tables(self) -> Tables:
        """The Iceberg tables of this home."""
        return Tables.of(self.settings)

    def corpus_folder(self, corpus: str) -> Path:
        """Folder of one corpus's index files."""
        return self.root / "corpora" / corpus

    def builds_folder(self, corpus: str) -> Path:
        """Folder whose children are the corpus's index builds."""
        return self.corpus_folder(corpus) / "builds"

    def live_pointer(self, corpus: str) -> Path:
        """File that names the live build; replaced atomically."""
        return self.corpus_folder(corpus) / "live.json"

    def lock_file(self, corpus: str, shard: str = "") -> Path:
        """File on which the one writer of a corpus, or of a shard of it, holds an OS lock."""
        return self.root / "locks" / f"{corpus}{shard and '.'}{shard}.lock"

    @property
    def servers_folder(self) -> Path:
        """Folder of what this home knows about the servers it filled."""
        return self.root / "servers"

    @property
    def model_cache(self) -> Path:
        """Folder of converted models."""
        return self.root / "models"
