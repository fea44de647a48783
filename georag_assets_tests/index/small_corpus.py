"""A made corpus in the tables, as the stages before the index leave it, and embedders without a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import shapely

from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.index.embedding import Advance, Embedder, ModelIdentity, Vectors
from georag_assets.reports import CheckResult, StageReport

WORDS = (
    *("weir", "harbour", "survey", "gauge", "terrace", "moraine", "vineyard"),
    *("ridge", "estuary", "delta", "levee", "spring", "marsh", "quarry"),
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def declaration(name: str = "small") -> SimpleNamespace:
    return SimpleNamespace(name=name, evaluation=None)


@dataclass
class HashBackend:
    """A vector from each text's words: equal words, equal vectors; `planted` replaces a text's vector."""

    dimension: int
    planted: Mapping[str, Sequence[float]]
    tilt: float = 0.0
    texts_run: int = 0

    def run(self, texts: Sequence[str], batch: int, advance: Advance) -> Vectors:
        self.texts_run += len(texts)
        rows = []
        for text in texts:
            if text in self.planted:
                rows.append(np.asarray(self.planted[text], np.float32))
                continue
            total = np.zeros(self.dimension)
            for word in text.split() or [""]:
                seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
                total += np.random.default_rng(seed).normal(size=self.dimension)
            total[0] += self.tilt * np.linalg.norm(total)
            rows.append(total.astype(np.float32))
        advance(len(texts))
        return np.stack(rows)


def embedder(
    *,
    model: str = "A",
    dimension: int = 32,
    planted: Mapping[str, Sequence[float]] | None = None,
    tilt: float = 0.0,
    libraries: str = "made=1",
) -> tuple[Embedder, HashBackend]:
    """Return an embedder and the backend that counts what it ran; `tilt` moves every vector, as an upgrade would."""

    class Made(Embedder):
        @property
        def libraries(self) -> str:
            return libraries

    backend = HashBackend(dimension, planted or {}, tilt)
    identity = ModelIdentity(model, sha(model), ("Hash", "Normalize(applied)"), 256, dimension, "torch", "f32")
    return Made(identity, lambda: backend), backend


def write_chunks(home: Home, texts: Iterable[str], *, corpus: str = "small", removed: Sequence[str] = ()) -> list[str]:
    """Add a document of one chunk for each text; return the document ids."""
    rows = [
        {
            "chunk_id": chunk_id(text),
            "doc_id": f"doc-{sha(text)[:8]}",
            "content_sha256": sha(text),
            "code_version": "chunks-1",
            "start": 0,
            "end": len(text),
            "text": text,
            "unit": "document",
            "context": "",
            "embedded_text": text,
            "embedded_sha256": sha(text),
            "token_count": len(text.split()) + 2,
            "flags": [],
            "feature_ids": [f"f-{sha(text)[:6]}"],
            "literals_json": "[]",
            "inherited": True,
        }
        for text in texts
    ]
    added = pa.Table.from_pylist(rows, CHUNKS.schema)
    home.tables.replace_rows(corpus, CHUNKS, key="doc_id", removed=list(removed), added=added)
    return [str(row["doc_id"]) for row in rows]


def chunk_id(text: str) -> str:
    digits = sha(text)[:32]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def write_corpus(
    home: Home,
    count: int,
    *,
    corpus: str = "small",
    seed: int = 0,
    unlocated: int = 0,
    place: Callable[[int, np.random.Generator], shapely.Geometry] | None = None,
) -> list[str]:
    """Write documents, chunks and frames of `count` made passages (the last `unlocated` without geometry)."""
    random = np.random.default_rng(seed)
    texts = _texts(seed, count, random)
    doc_ids = [f"doc-{sha(text)[:8]}" for text in texts]
    documents, frames = [], []
    for row, (text, doc_id) in enumerate(zip(texts, doc_ids, strict=True)):
        shape = None
        if row < count - unlocated:
            shape = place(row, random) if place else shapely.box(*_small_box(random))
        wkb = None if shape is None else shapely.to_wkb(shape)
        bounds = (None,) * 4 if shape is None else shape.bounds
        documents.append(
            {
                "doc_id": doc_id,
                "text": text,
                "title": f"Passage {row}",
                "source": f"{doc_id}.txt",
                "location": f"{doc_id}.txt:1",
                "media_type": "text/plain",
                "content_sha256": sha(text),
                "feature_ids": [f"f-{sha(text)[:6]}"],
                "geometry_wkb": wkb,
                "geometry_epsg": 4326,
                "geometry_flags": [],
                "period_start": float(row * 86_400),
                "period_end": float((row + 30) * 86_400),
                "licence": "CC0-1.0",
                "fields_json": "{}",
            }
        )
        frames.append(
            {
                "chunk_id": chunk_id(text),
                "doc_id": doc_id,
                "content_sha256": sha(text),
                "code_version": "frames-1",
                "epsg": 4326,
                "authority": "EPSG",
                "confidence": 0.95,
                "grade": "measured",
                "evidence_json": json.dumps([]),
                "candidates": ["EPSG:4326"],
                "note": "",
                "geometry_wkb": wkb,
                "geometry_origin": "document",
                "geometry_flags": [],
                **dict(zip(("west", "south", "east", "north"), bounds, strict=True)),
            }
        )
    for spec, key, rows in ((DOCUMENTS, "doc_id", documents), (FRAMES, "chunk_id", frames)):
        home.tables.replace_rows(corpus, spec, key=key, removed=[], added=pa.Table.from_pylist(rows, spec.schema))
    # Last: a test that kills this leaves documents without chunks, never chunks without their document.
    write_chunks(home, texts, corpus=corpus)
    return texts


def _texts(seed: int, count: int, random: np.random.Generator) -> list[str]:
    return [f"{' '.join(random.choice(WORDS, 6))} number {row} of {seed}" for row in range(count)]


def documents_of(seed: int, count: int) -> list[str]:
    """Return the document ids that `write_corpus` makes of a seed."""
    return [f"doc-{sha(text)[:8]}" for text in _texts(seed, count, np.random.default_rng(seed))]


def remove_documents(home: Home, doc_ids: Sequence[str], *, corpus: str = "small") -> None:
    """Take documents, their chunks and their frames out of the tables, as a sync does."""
    for spec in (CHUNKS, FRAMES, DOCUMENTS):
        added = pa.Table.from_pylist([], spec.schema)
        home.tables.replace_rows(corpus, spec, key="doc_id", removed=list(doc_ids), added=added)


def _small_box(random: np.random.Generator) -> tuple[float, float, float, float]:
    west, south = random.uniform(-120, -100), random.uniform(30, 45)
    width, height = random.uniform(0.01, 0.5, 2)
    return west, south, west + width, south + height


UPSTREAM_CHECKS = {
    "documents": ("documents_accounted_for", "quarantine_within_threshold"),
    "chunks": ("every_geometry_parses", "chunks_cover_documents"),
    "frames": ("every_chunk_has_frame_and_extent", "every_frame_has_evidence"),
}


def run_upstream(home: Home, made: Embedder, *, corpus: str = "small", failing: Sequence[str] = ()) -> None:
    """Publish the version, embed, and record every upstream stage as the pipeline does."""
    from georag_assets.corpus.versions import publish_version
    from georag_assets.index.embedding_stage import embed_corpus
    from georag_assets.tables.measurements import record

    publish_version(home, declaration(corpus))
    for stage, names in UPSTREAM_CHECKS.items():
        checks = tuple(CheckResult(name, name not in failing, True, name) for name in names)
        report = StageReport(corpus, stage, "d1", {}, {}, checks)
        record(home.tables, corpus, (report, datetime.now(UTC)))
    record(home.tables, corpus, (embed_corpus(home, declaration(corpus), made), datetime.now(UTC)))
