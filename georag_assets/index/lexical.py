"""Text to BM25 sparse vectors, by the engine's own model so that both stores rank alike.

What belongs here: the model and its name. What does not: IDF, which the store computes over its points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdrant_edge import Bm25, SparseVector


@dataclass(frozen=True)
class LexicalEmbedder:
    """BM25 with the engine's defaults (k 1.2, b 0.75, average length 256 tokens)."""

    language: str = "english"

    @property
    def name(self) -> str:
        """Name and version, part of a build's identity."""
        return f"bm25-{self.language} qdrant-edge-py={version('qdrant-edge-py')}"

    @cached_property
    def _model(self) -> Bm25:
        from qdrant_edge import Bm25, Bm25Config

        return Bm25(Bm25Config(language=self.language))

    def document(self, text: str) -> SparseVector:
        """Return a passage's terms and weights; none where the text has no terms."""
        return self._model.embed_document(text)

    def query(self, text: str) -> SparseVector:
        """Return a question's terms and weights; none where the text has no terms."""
        return self._model.embed_query(text)
