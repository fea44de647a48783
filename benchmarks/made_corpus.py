"""A corpus of any number of chunks in the tables, as the stages before the index leave it, with made vectors.

What belongs here: filling a home, and building it in a process whose memory is its own. What does not: the figures'
goals (`build`). Vectors are made, because what is measured here has no use for their meaning.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import psutil
import pyarrow as pa
import shapely

from georag_assets.corpus.models import CHUNKS, DOCUMENTS
from georag_assets.corpus.versions import publish_version
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.index.builds import build_index
from georag_assets.index.embedding import Advance, Embedder, ModelIdentity, Vectors
from georag_assets.index.embedding_stage import embed_corpus
from georag_assets.reports import StageReport
from georag_assets.settings import Settings

CORPUS: Any = SimpleNamespace(name="made", evaluation=None)
CHUNKS_PER_DOCUMENT = 10
DIMENSION = 384
ROWS = 5_000


class _Random:
    def run(self, texts: Sequence[str], batch: int, advance: Advance) -> Vectors:
        advance(len(texts))
        # In clusters, as meanings are: vectors without any structure are beyond every graph.
        seed = int(sha256(texts[0].encode()).hexdigest()[:8], 16)
        random, shape = np.random.default_rng(seed), (len(texts), DIMENSION)
        middles = np.random.default_rng(0).standard_normal((300, DIMENSION), dtype=np.float32)
        return middles[random.integers(0, 300, len(texts))] + random.standard_normal(shape, dtype=np.float32)


def _embedder() -> Embedder:
    identity = ModelIdentity("made", sha256(b"made").hexdigest(), ("Random",), 256, DIMENSION, "torch", "f32")
    return Embedder(identity, _Random)


def _text(number: int, revision: str) -> str:
    return f"Passage {number}{revision} tells of a river, its valley and its towns, as a survey found them. " * 8


def _content(document: str, revision: str) -> str:
    return sha256(f"{document}{revision}".encode()).hexdigest()


def _rows(numbers: range, revision: str = "") -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield rows of chunks and of frames; a revision's differ in text, place and id."""
    random = np.random.default_rng(len(revision))
    for start in range(0, len(numbers), ROWS):
        chunks, frames = [], []
        for number in numbers[start : start + ROWS]:
            text, west, south = _text(number, revision), random.uniform(-180, 178), random.uniform(-85, 85)
            document = f"document-{number // CHUNKS_PER_DOCUMENT}"
            same = {
                "chunk_id": str(uuid5(NAMESPACE_URL, f"made-{number}{revision}")),
                "doc_id": document,
                "content_sha256": _content(document, revision),
                "code_version": "made-1",
            }
            chunks.append(
                {
                    **same,
                    "start": 0,
                    "end": len(text),
                    "text": text,
                    "unit": "section",
                    "context": "",
                    "embedded_text": text,
                    "embedded_sha256": sha256(text.encode()).hexdigest(),
                    "token_count": 200,
                }
            )
            edges = {"west": west, "south": south, "east": west + 0.5, "north": south + 0.5}
            wkb = shapely.to_wkb(shapely.box(*edges.values()))
            frames.append({**same, "epsg": 4326, "confidence": 0.9, "grade": "measured", "geometry_wkb": wkb, **edges})
        yield chunks, frames


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def fill(home: Home, count: int) -> None:
    """Write documents, chunks, frames and embeddings of `count` chunks and publish their version."""
    _write(home, range(-(-count // CHUNKS_PER_DOCUMENT)), range(count), "")


def revise(home: Home, documents: range, revision: str) -> None:
    """Give documents another text and another place, every chunk of theirs, and publish the version."""
    numbers = range(documents.start * CHUNKS_PER_DOCUMENT, documents.stop * CHUNKS_PER_DOCUMENT)
    _write(home, documents, numbers, revision)


def build(home: Home) -> StageReport:
    """Build the corpus's index from its tables."""
    return build_index(home, CORPUS, embedder=_embedder())


def _write(home: Home, documents: range, numbers: range, revision: str) -> None:
    made = [
        {
            "doc_id": f"document-{number}",
            "text": "",
            "title": f"Document {number}",
            "source": f"made#{number}",
            "content_sha256": _content(f"document-{number}", revision),
            "fields_json": "{}",
        }
        for number in documents
    ]
    replace, removed = home.tables.replace_rows, [row["doc_id"] for row in made] if revision else []
    replace(CORPUS.name, DOCUMENTS, key="doc_id", removed=removed, added=[_batch(made, DOCUMENTS.schema)])
    for part, spec in enumerate((CHUNKS, FRAMES)):
        added = (_batch(rows[part], spec.schema) for rows in _rows(numbers, revision))
        replace(CORPUS.name, spec, key="doc_id", removed=removed, added=added)
    publish_version(home, CORPUS)
    embed_corpus(home, CORPUS, _embedder())


def _filled(folder: Path, count: int) -> None:
    fill(Home(Settings(home=folder)), count)


def _built(folder: Path, answers: multiprocessing.Queue[float]) -> None:
    report = build(Home(Settings(home=folder)))
    assert not report.blocked, [check for check in report.checks if not check.passed]
    answers.put(sum(report.seconds.values()))


def peak_memory(count: int) -> dict[str, float]:
    """Return the peak resident MiB of a build of `count` chunks: its process and its writer's, at the same moment.

    Resident memory counts mapped files too, which the kernel may drop; the figure is the strictest one.
    """
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[float] = context.Queue()
    with tempfile.TemporaryDirectory(prefix="georag-benchmark-") as name:
        folder = Path(name)
        filling = context.Process(target=_filled, args=(folder, count))
        filling.start()
        filling.join()
        building = context.Process(target=_built, args=(folder, answers))
        building.start()
        peak = {"both_mib": 0.0, "own_mib": 0.0, "writer_mib": 0.0}
        while building.is_alive():
            own, writers = _resident_mib(building.pid or 0)
            for key, mib in (("both_mib", own + writers), ("own_mib", own), ("writer_mib", writers)):
                peak[key] = max(peak[key], mib)
            time.sleep(0.05)
        if building.exitcode:
            raise SystemExit(f"building {count} chunks failed with {building.exitcode}")
        return {**peak, "seconds": answers.get()}


def _resident_mib(pid: int) -> tuple[float, float]:
    try:
        process = psutil.Process(pid)
        writers = sum(child.memory_info().rss for child in process.children(recursive=True))
        return process.memory_info().rss / 2**20, writers / 2**20
    except psutil.NoSuchProcess:
        return 0.0, 0.0
