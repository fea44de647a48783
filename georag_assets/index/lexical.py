"""Text to BM25 sparse vectors, by the engine's own model so that both stores rank alike.

What belongs here: the model and its name. What does not: IDF, which the store computes over its points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sparse:
    """Indices (term hashes, ascending, unique) and weights; empty where the text has no terms."""

    indices: NDArray[np.uint32]
    values: NDArray[np.float32]


@dataclass(frozen=True)
class LexicalModel:
    """BM25 with the engine's defaults (k 1.2, b 0.75, average length 256)."""

    language: str = "english"

    @property
    def name(self) -> str:
        """Name and version, part of a build's identity."""
        return f"bm25({self.language}) qdrant-edge {version('qdrant-edge-py')}"

    @cached_property
    def _model(self) -> Any:
        from qdrant_edge import Bm25, Bm25Config

        return Bm25(Bm25Config(language=self.language))

    def document(self, text: str) -> Sparse:
        """Return a passage's weights."""
        return _sparse(self._model.embed_document(text))

    def query(self, text: str) -> Sparse:
        """Return a question's weights."""
        return _sparse(self._model.embed_query(text))


def _sparse(vector: Any) -> Sparse:
    indices, values = np.asarray(vector.indices, np.uint32), np.asarray(vector.values, np.float32)
    order = np.argsort(indices)
    return Sparse(indices[order], values[order])
