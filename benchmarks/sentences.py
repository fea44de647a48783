"""Points to measure an index with: sentences of the text sets, embedded once, with the places that their sets give.

What belongs here: gathering, embedding and caching of sentences, and the places assigned where a set has none. What
does not: what is measured (`recall`, `build`).
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from benchmarks.report import data_folder
from georag_assets.index.batch import make_batch
from georag_assets.index.embedding import Embedder, progress_bar
from georag_assets.settings import Settings

CACHE = Path(__file__).parent / "cache"
LONGEST = 300
WIDEST = 5.0
_BREAK = re.compile(r"(?<=[.!?;:])\s+|\n+|\s\|\s")
_WORDS = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True)
class Sentences:
    """Sentences, unit vectors, and their extents (NaN where the set gives none)."""

    texts: list[str]
    vectors: NDArray[np.float32]
    given: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.texts)


def sentences(count: int = 50_000) -> Sentences:
    """Return `count` sentences with vectors, embedded at the first call and cached; all there are where fewer."""
    gathered = dict(_gathered(data_folder()))
    order = sorted(gathered, key=lambda text: sha256(text.encode()).digest())[:count]
    embedder = Embedder.load(Settings(home=CACHE))
    name = sha256(("\n".join(order) + embedder.fingerprint).encode()).hexdigest()[:16]
    path = CACHE / f"sentences-{name}.npy"
    if path.exists():
        vectors: NDArray[np.float32] = np.load(path)
    else:
        CACHE.mkdir(parents=True, exist_ok=True)
        print(f"embedding {len(order)} sentences once into {path}", file=sys.stderr)
        with progress_bar(len(order), "sentences") as advance:
            vectors = embedder.encode(order, progress=advance)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, vectors)
        partial.replace(path)
    return Sentences(order, vectors, np.array([gathered[text] for text in order], dtype=np.float64))


def _gathered(data: Path) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    for text, place in _documents(data):
        for sentence in _BREAK.split(text):
            kept = " ".join(sentence.split())[:LONGEST]
            if len(_WORDS.findall(kept)) >= 3:
                yield kept, place


def _documents(data: Path) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    nowhere = (np.nan,) * 4
    for record in _lines(data / "stanford_ogm" / "docs.jsonl.gz"):
        yield f"{record['title']}\n{record.get('description') or ''}", _box(record.get("bbox"))
    for record in _lines(data / "pleiades" / "pleiades.jsonl.gz"):
        yield f"{record['title']}: {record.get('description') or ''}", _box(record.get("bbox"))
    for record in _lines(data / "wiktor" / "wiktor.jsonl.gz"):
        yield record["text"], _box([record["lon"], record["lat"]] * 2)
    for record in _lines(data / "ava" / "ava_docs.jsonl.gz"):
        yield record["text"], nowhere
    for name in ("geovirus/geovirus.jsonl.gz", "crs_mentions/crs_mentions.jsonl.gz"):
        for record in _lines(data / name):
            yield record["text"], nowhere
    for suffix in ("md", "rst", "adoc", "mkd", "txt"):
        for path in sorted(data.rglob(f"*.{suffix}")):
            yield path.read_text(encoding="utf-8", errors="replace"), nowhere


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _box(bounds: list[float] | None) -> tuple[float, float, float, float]:
    """Return a record's box, unwrapped; NaN where it has none that is one."""
    if not bounds or len(bounds) != 4:
        return (np.nan,) * 4
    west, south, east, north = map(float, bounds)
    if not -90 <= south <= north <= 90 or max(abs(west), abs(east)) > 360:
        return (np.nan,) * 4
    west = (west + 180) % 360 - 180
    east = (east + 180) % 360 - 180 if abs(east) > 180 else east
    return west, south, east + 360 if east < west else east, north


def placed(points: Sentences, *, correlated: bool, seed: int = 0) -> NDArray[np.float64]:
    """Return an extent for every sentence: the given ones, assigned ones where the set gives none or a wide one.

    Correlated: a sentence lies where its meaning's two main directions point, with a little scatter. Otherwise every
    sentence, given or not, lies where chance puts it. Sizes span a point to some degrees, as real footprints do.
    """
    random = np.random.default_rng(seed)
    count = len(points)
    if correlated:
        centred = points.vectors - points.vectors.mean(axis=0)
        _, directions = np.linalg.eigh(np.cov(centred[:: max(1, count // 5_000)].T))
        along = centred @ directions[:, -2:]
        ranks = along.argsort(axis=0).argsort(axis=0) / max(count - 1, 1)
        lon = ranks[:, 1] * 350 - 175 + random.normal(0, 2, count)
        lat = ranks[:, 0] * 160 - 80 + random.normal(0, 1, count)
    else:
        lon, lat = random.uniform(-180, 180, count), random.uniform(-85, 85, count)
    half = np.where(random.random(count) < 0.3, 0.0, 10 ** random.uniform(-3, 0.5, count))
    west = (lon - half + 180) % 360 - 180
    assigned = np.column_stack([west, np.clip(lat - half, -90, 90), west + 2 * half, np.clip(lat + half, -90, 90)])
    if not correlated:
        return assigned
    # A catalogue's maps of the world meet every region: with them no region could hold as little as 0.1 %.
    size = np.maximum(points.given[:, 2] - points.given[:, 0], points.given[:, 3] - points.given[:, 1])
    return np.where((size < WIDEST)[:, None], points.given, assigned)


def point_ids(count: int) -> list[str]:
    """Return ids in no order that means anything."""
    return [str(uuid5(NAMESPACE_URL, f"sentence-{number}")) for number in range(count)]


def batches(
    points: Sentences,
    extents: NDArray[np.float64],
    ids: list[str],
    *,
    starts: NDArray[np.float64] | None = None,
    rows: int = 1_000,
) -> Iterator[pa.RecordBatch]:
    """Yield points as a build sends them: payload with text, source and frame, in bounded batches.

    With `starts` each has a period of one second from there.
    """
    for start in range(0, len(points), rows):
        part = slice(start, start + rows)
        texts = points.texts[part]
        count = len(texts)
        columns: dict[str, Any] = {
            "chunk_id": pa.array(ids[part]),
            "lexical_text": pa.array(texts),
            "text": pa.array(texts),
            "corpus": pa.array(["sentences"] * count),
            "corpus_version": pa.array(["v1-00000000"] * count),
            "doc_id": pa.array([f"document-{(start + row) // 8}" for row in range(count)]),
            "content_sha256": pa.array([sha256(text.encode()).hexdigest() for text in texts]),
            "source": pa.array([f"sentences#{start + row}" for row in range(count)]),
            "title": pa.array([text[:60] for text in texts]),
            "licence": pa.array(["CC0-1.0"] * count),
            "grade": pa.array(["measured"] * count),
            "epsg": pa.array([4326] * count),
            "frame_confidence": pa.array([0.95] * count),
            "start": pa.array(range(count)),
            "end": pa.array(range(count)),
        }
        if starts is not None:
            columns |= {"period_start": pa.array(starts[part]), "period_end": pa.array(starts[part] + 1)}
        for column, edge in enumerate(("west", "south", "east", "north")):
            values = extents[part, column]
            columns[edge] = pa.array(values, mask=~np.isfinite(values))
        yield make_batch(columns, points.vectors[part])


def geometries(extents: NDArray[np.float64], ids: list[str], *, rows: int = 5_000) -> Iterator[pa.RecordBatch]:
    """Yield the extents as geometries: a point where it has no size, else a box."""
    for start in range(0, len(ids), rows):
        part = extents[start : start + rows]
        found = np.flatnonzero(np.isfinite(part[:, 0]))
        boxes = shapely.box(*part[found].T)
        size = (part[found, 2] - part[found, 0]) + (part[found, 3] - part[found, 1])
        shapes = np.where(size == 0, shapely.points(part[found, 0], part[found, 1]), boxes)
        yield pa.RecordBatch.from_pydict(
            {
                "chunk_id": pa.array([ids[start + row] for row in found.tolist()], pa.string()),
                "geometry_wkb": pa.array(shapely.to_wkb(shapes).tolist(), pa.binary()),
            }
        )
