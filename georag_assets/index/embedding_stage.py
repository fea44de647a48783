"""The embeddings stage: which texts of a corpus still need a vector, and where vectors are kept.

What belongs here: the content-addressed cache of vectors, the probe that decides whether it still holds after a library
upgrade, the quarantine of texts without a usable vector. What does not: making a vector (`index.embedding`).

The need to embed is decided from what the cache holds for this model and text, never from what chunks look like: a
model changed and changed back leaves the chunk rows as they were (and its vectors possibly deleted).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from georag_assets.corpus.models import CHUNKS, QUARANTINE
from georag_assets.corpus.shards import WHOLE, Shard
from georag_assets.errors import EmbeddingError
from georag_assets.home import Home
from georag_assets.index.embedding import PROBE_AGREEMENT, Advance, Embedder, Vectors, agreement, progress_bar
from georag_assets.index.points import vector_faults
from georag_assets.reports import CheckResult, StageReport
from georag_assets.tables.iceberg import TableSpec

STAGE = "embeddings"
# A killed run loses at most one slice; smaller slices make more files than they save work.
SLICE = 2_000
# From so many texts on a run's rate says how long a rebuild would take.
RATED = 200

EMBEDDINGS = TableSpec(
    "embeddings",
    pa.schema(
        [
            ("model_fingerprint", pa.string()),
            ("text_sha256", pa.string()),
            ("vector", pa.list_(pa.float32())),
        ]
    ),
    partition_by=("model_fingerprint",),
)

# One row per set of comparable vectors. `model_fingerprint` is the identity's, with a suffix for each set that an
# upgrade of libraries began.
MODELS = TableSpec(
    "embedding_models",
    pa.schema(
        [
            ("model_fingerprint", pa.string()),
            ("identity_fingerprint", pa.string()),
            ("identity_json", pa.string()),
            ("libraries", pa.string()),
            ("probes", pa.list_(pa.list_(pa.float32()))),
            ("texts_per_second", pa.float64()),
        ]
    ),
)


class Named(Protocol):
    """What this stage needs of a declaration."""

    @property
    def name(self) -> str:
        """The corpus's name."""
        ...


def embed_corpus(
    home: Home,
    declaration: Named,
    embedder: Embedder | None = None,
    *,
    shard: Shard = WHOLE,
    shown: bool | None = None,
) -> StageReport:
    """Embed the texts of the corpus's chunks that have no vector yet.

    Two shards that run at once may embed a text that both have; the whole corpus's next run, or the build that joins
    them, drops the second vector.

    Parameters
    ----------
    shard
        Embed only the texts of its documents.
    embedder
        The settings' model where None.
    shown
        Show a progress bar; None means on a terminal.

    Returns
    -------
    StageReport
        Counts: `new`, `reused` (texts), `removed` (texts in the cache that no chunk has now: kept, for when they come
        back), `quarantined` (chunks), `truncated` (chunks over the model's length).
    """
    corpus = declaration.name
    embedder = embedder or Embedder.load(home.settings)
    seconds: dict[str, float] = {}

    started = time.perf_counter()
    vector_set = settle_vector_set(home, corpus, embedder)
    seconds["probe"] = time.perf_counter() - started

    started = time.perf_counter()
    columns = ["chunk_id", "doc_id", "embedded_sha256", "token_count"]
    every = home.tables.read(corpus, CHUNKS, columns=columns)
    if shard.whole:
        drop_doubled(home, corpus, vector_set)
    cached = _cached(home, corpus, vector_set)
    chunks = shard.of_rows(every)
    wanted = pc.unique(chunks["embedded_sha256"])
    missing = set(wanted.filter(pc.invert(pc.is_in(wanted, value_set=cached))).to_pylist())
    seconds["plan"] = time.perf_counter() - started

    started = time.perf_counter()
    unusable = _embed_missing(home, corpus, embedder, vector_set, missing, shown) if missing else {}
    seconds["embed"] = time.perf_counter() - started

    new = len(missing) - len(unusable)
    if new >= RATED:
        _note_rate(home, corpus, vector_set, new / seconds["embed"])
    quarantined = _quarantine(home, corpus, shard, chunks, unusable)
    limit = embedder.identity.max_length
    truncated = pc.sum(pc.greater(chunks["token_count"], limit)).as_py() or 0
    return StageReport(
        corpus=corpus,
        stage=STAGE,
        data_version=_data_version(vector_set, wanted, unusable),
        counts={
            "new": new,
            "reused": len(wanted) - len(missing),
            "removed": pc.sum(pc.invert(pc.is_in(cached, value_set=pc.unique(every["embedded_sha256"])))).as_py() or 0,
            "quarantined": quarantined,
            "truncated": truncated,
            "chunks": chunks.num_rows,
        },
        seconds=seconds,
        checks=(_every_text_has_a_vector(home, corpus, shard, vector_set, wanted, unusable),),
        snapshot_id=home.tables.snapshot_id(corpus, EMBEDDINGS),
        metadata={
            "vector_set": vector_set,
            "model": embedder.identity.model,
            "backend": f"{embedder.identity.backend} {embedder.identity.precision}",
            "texts_per_second": round(new / seconds["embed"], 1) if new else 0.0,
        },
        shard=shard.label,
    )


def settle_vector_set(home: Home, corpus: str, embedder: Embedder) -> str:
    """Return the fingerprint under which this embedder's vectors are kept, so that no set mixes what disagrees.

    Known libraries need no probe and load no model. After an upgrade the probe texts decide: where they agree the set
    goes on under the new versions, else a new set begins, and with it a new index build (not a new corpus version).
    """
    known = home.tables.read(corpus, MODELS, where=("identity_fingerprint", [embedder.fingerprint])).to_pylist()
    for row in known:
        if row["libraries"] == embedder.libraries:
            return str(row["model_fingerprint"])
    probes = embedder.probe()
    if faults := vector_faults(probes):
        raise EmbeddingError(
            "the model gives unusable vectors for plain words",
            where=embedder.identity.model,
            found=", ".join(sorted(set(faults.values()))),
            do="try GEORAG_EMBEDDING_BACKEND=torch",
        )
    name = embedder.fingerprint
    for row in known:
        if agreement(np.asarray(row["probes"], np.float32), probes) >= PROBE_AGREEMENT:
            # The probes stay those that the set began with: a slow drift over many upgrades must not pass unseen.
            name, probes = str(row["model_fingerprint"]), np.asarray(row["probes"], np.float32)
            break
    else:
        if known:
            name += "-" + hashlib.sha256(embedder.libraries.encode()).hexdigest()[:8]
    row = {
        "model_fingerprint": name,
        "identity_fingerprint": embedder.fingerprint,
        "identity_json": json.dumps(asdict(embedder.identity)),
        "libraries": embedder.libraries,
        "probes": probes.tolist(),
        "texts_per_second": next((old["texts_per_second"] for old in known if old["model_fingerprint"] == name), None),
    }
    added = pa.Table.from_pylist([row], MODELS.schema)
    home.tables.replace_rows(corpus, MODELS, key="model_fingerprint", removed=[name], added=added)
    return name


def texts_per_second(home: Home, corpus: str, vector_set: str) -> float | None:
    """Return the rate at which this set's vectors were last made here, if enough were."""
    rows = home.tables.read(corpus, MODELS, where=("model_fingerprint", [vector_set])).to_pylist()
    return rows[0]["texts_per_second"] if rows else None


def _note_rate(home: Home, corpus: str, vector_set: str, rate: float) -> None:
    rows = home.tables.read(corpus, MODELS, where=("model_fingerprint", [vector_set])).to_pylist()
    added = pa.Table.from_pylist([{**row, "texts_per_second": rate} for row in rows], MODELS.schema)
    home.tables.replace_rows(corpus, MODELS, key="model_fingerprint", removed=[vector_set], added=added)


def vector_reader(home: Home, corpus: str, vector_set: str) -> Callable[[Sequence[str]], Vectors]:
    """Return a look-up from text hashes to their vectors, in order; an unknown hash gives a row of NaN.

    The set is held once as float32 (1.5 kB a text at 384 dimensions).
    """
    table = home.tables.read(
        corpus, EMBEDDINGS, columns=["text_sha256", "vector"], where=("model_fingerprint", [vector_set])
    )
    place = {sha: row for row, sha in enumerate(table["text_sha256"].to_pylist())}
    vectors = _matrix(table["vector"])
    dimension = vectors.shape[1]

    def look_up(hashes: Sequence[str]) -> Vectors:
        rows = np.fromiter((place.get(sha, -1) for sha in hashes), np.int64, len(hashes))
        found = np.full((len(hashes), dimension), np.nan, np.float32)
        found[rows >= 0] = vectors[rows[rows >= 0]]
        return found

    return look_up


def unfit_chunks(home: Home, corpus: str) -> frozenset[str]:
    """Return the ids of chunks that this stage quarantined: they have no vector and get no point."""
    rows = home.tables.read(corpus, QUARANTINE, where=("stage", [STAGE]))
    return frozenset(location.removeprefix("chunk ") for location in rows["location"].to_pylist())


def drop_doubled(home: Home, corpus: str, vector_set: str) -> int:
    """Drop every vector but one of each text, where shards that ran at once made several; return how many went.

    The caller holds the corpus's writer lock, not a shard's.
    """
    texts = _cached(home, corpus, vector_set)
    counted = pc.value_counts(texts)
    doubled = counted.field("values").filter(pc.greater(counted.field("counts"), 1)).to_pylist()
    if not doubled:
        return 0
    # Rows of other models' sets have the same text hashes: all of them are written again.
    rows = home.tables.read(corpus, EMBEDDINGS, where=("text_sha256", doubled))
    keys = list(zip(rows["model_fingerprint"].to_pylist(), rows["text_sha256"].to_pylist(), strict=True))
    kept = rows.take(sorted({key: row for row, key in enumerate(keys)}.values()))
    home.tables.replace_rows(corpus, EMBEDDINGS, key="text_sha256", removed=doubled, added=kept)
    return int(rows.num_rows - kept.num_rows)


def _cached(home: Home, corpus: str, vector_set: str) -> pa.Array:
    table = home.tables.read(corpus, EMBEDDINGS, columns=["text_sha256"], where=("model_fingerprint", [vector_set]))
    return table["text_sha256"].combine_chunks()


def _embed_missing(
    home: Home, corpus: str, embedder: Embedder, vector_set: str, missing: set[str], shown: bool | None
) -> dict[str, str]:
    """Embed and commit slice by slice; return text hash -> what is wrong, for texts that get no vector."""
    faults: dict[str, str] = {}
    left = set(missing)
    held: list[tuple[str, str]] = []
    with progress_bar(len(missing), f"embedding {corpus}", shown=shown) as advance:
        for batch in home.tables.batches(corpus, CHUNKS, columns=["embedded_sha256", "embedded_text"]):
            for sha, text in zip(*(batch.column(name).to_pylist() for name in range(2)), strict=True):
                if sha not in left:
                    continue
                left.discard(sha)
                if not text or text.isspace():
                    # A blank text has a vector like any other, near nothing and above much.
                    faults[sha] = "blank text"
                    advance(1)
                    continue
                held.append((sha, text))
                if len(held) == SLICE:
                    faults.update(_commit(home, corpus, embedder, vector_set, held, advance))
                    held = []
        if held:
            faults.update(_commit(home, corpus, embedder, vector_set, held, advance))
    return faults


def _commit(
    home: Home, corpus: str, embedder: Embedder, vector_set: str, texts: list[tuple[str, str]], advance: Advance
) -> dict[str, str]:
    hashes = [sha for sha, _ in texts]
    vectors = embedder.encode([text for _, text in texts], progress=advance)
    faults = vector_faults(vectors)
    good = np.setdiff1d(np.arange(len(texts)), list(faults))
    flat = pa.array(vectors[good].reshape(-1))
    offsets = pa.array(np.arange(len(good) + 1, dtype=np.int32) * vectors.shape[1])
    rows = pa.table(
        [
            pa.array([vector_set] * len(good)),
            pa.array([hashes[row] for row in good]),
            pa.ListArray.from_arrays(offsets, flat),
        ],
        schema=EMBEDDINGS.schema,
    )
    home.tables.replace_rows(corpus, EMBEDDINGS, key="text_sha256", removed=[], added=rows)
    return {hashes[row]: f"{kind} vector" for row, kind in faults.items()}


def _quarantine(home: Home, corpus: str, shard: Shard, chunks: pa.Table, unusable: dict[str, str]) -> int:
    """Make the quarantine hold exactly the chunks without a usable vector; return how many there are."""
    before = shard.of_rows(home.tables.read(corpus, QUARANTINE, where=("stage", [STAGE])))
    mask = pc.is_in(chunks["embedded_sha256"], value_set=pa.array(list(unusable), pa.string()))
    rows = [
        {
            "doc_id": chunk["doc_id"],
            "source": chunk["doc_id"],
            "location": f"chunk {chunk['chunk_id']}",
            "kind": unusable[chunk["embedded_sha256"]],
            "reason": f"{unusable[chunk['embedded_sha256']]} in document {chunk['doc_id']}: it could never be found",
            "stage": STAGE,
        }
        for chunk in chunks.filter(mask).to_pylist()
    ]
    after = pa.Table.from_pylist(rows, QUARANTINE.schema)
    if sorted(before["location"].to_pylist()) != sorted(after["location"].to_pylist()):
        removed = sorted(set(before["location"].to_pylist()))
        home.tables.replace_rows(corpus, QUARANTINE, key="location", removed=removed, added=after)
    return len(rows)


def _every_text_has_a_vector(
    home: Home, corpus: str, shard: Shard, vector_set: str, wanted: pa.Array, unusable: dict[str, str]
) -> CheckResult:
    """Count again from the table: a vector for each text that was not quarantined, and each text once.

    While shards run side by side a text may have two vectors for a time (`drop_doubled`).
    """
    cached = _cached(home, corpus, vector_set)
    expected = len(wanted) - len(unusable)
    found = pc.sum(pc.is_in(wanted, value_set=cached)).as_py() or 0
    doubled = len(cached) - len(pc.unique(cached))
    return CheckResult(
        "every_text_has_a_vector",
        passed=found == expected and (doubled == 0 or not shard.whole),
        blocking=True,
        description="Each distinct text of the corpus has one vector of this model, or its chunks are quarantined.",
        numbers={"texts": len(wanted), "vectors": found, "doubled": doubled, "unusable": len(unusable)},
        detail={"vector_set": vector_set},
    )


def _data_version(vector_set: str, wanted: pa.Array, unusable: dict[str, str]) -> str:
    """Over what the vectors were made from: floats differ in the last bits between batches and say nothing."""
    digest = hashlib.sha256(vector_set.encode())
    for sha in sorted(set(wanted.to_pylist()) - set(unusable)):
        digest.update(sha.encode())
    return digest.hexdigest()[:16]


def _matrix(vectors: pa.ChunkedArray) -> NDArray[np.float32]:
    flat = np.asarray(pc.list_flatten(vectors).to_numpy(), np.float32)
    return flat.reshape(len(vectors), -1) if len(vectors) else np.empty((0, 0), np.float32)
