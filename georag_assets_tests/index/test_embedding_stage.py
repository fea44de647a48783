"""The cache of vectors: what is embedded, what is not, and what happens when the model or its libraries change."""

from __future__ import annotations

import json

import numpy as np
import pytest

from georag_assets.corpus.models import QUARANTINE
from georag_assets.home import Home
from georag_assets.index.embedding_stage import EMBEDDINGS, MODELS, embed_corpus, vector_reader
from georag_assets_tests.index.small_corpus import chunk_id, declaration, embedder, sha, write_chunks

TEXTS = ["a weir on the Limmat", "a harbour at Basel", "a gauge near Bern", "a vineyard in Napa"]


def drop_vectors(home: Home) -> None:
    rows = home.tables.read("small", EMBEDDINGS, columns=["text_sha256"])["text_sha256"].to_pylist()
    home.tables.replace_rows(
        "small", EMBEDDINGS, key="text_sha256", removed=rows, added=EMBEDDINGS.schema.empty_table()
    )


def test_only_new_texts_are_embedded_and_returning_texts_are_not(home: Home) -> None:
    made, backend = embedder()
    docs = write_chunks(home, TEXTS)
    first = embed_corpus(home, declaration(), made)
    assert (first.counts["new"], first.counts["reused"]) == (4, 0)
    assert first.checks[0].passed
    write_chunks(home, ["a changed text"], removed=[docs[0]])
    ran = backend.texts_run
    second = embed_corpus(home, declaration(), made)
    assert (second.counts["new"], second.counts["reused"], second.counts["removed"]) == (1, 3, 1)
    assert backend.texts_run == ran + 1
    write_chunks(home, [TEXTS[0]], removed=[f"doc-{sha('a changed text')[:8]}"])
    third = embed_corpus(home, declaration(), made)
    assert third.counts["new"] == 0
    assert third.data_version == first.data_version != second.data_version


def test_a_run_without_new_text_opens_no_model(home: Home) -> None:
    write_chunks(home, TEXTS)
    embed_corpus(home, declaration(), embedder()[0])
    made, _ = embedder()
    made._open = lambda: pytest.fail("the model was opened")
    assert embed_corpus(home, declaration(), made).counts["reused"] == 4


def test_equal_texts_share_one_vector(home: Home) -> None:
    write_chunks(home, [TEXTS[0]])
    write_chunks(home, [TEXTS[0]])
    report = embed_corpus(home, declaration(), embedder()[0])
    assert (report.counts["chunks"], report.counts["new"]) == (2, 1)


def test_a_killed_run_keeps_its_finished_slices(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("georag_assets.index.embedding_stage.SLICE", 2)
    write_chunks(home, [f"text {number}" for number in range(7)])
    made, backend = embedder()
    run = backend.run

    def dies(texts, batch, advance):
        if backend.texts_run >= 9:  # five probes, two slices
            raise KeyboardInterrupt
        return run(texts, batch, advance)

    monkeypatch.setattr(backend, "run", dies)
    with pytest.raises(KeyboardInterrupt):
        embed_corpus(home, declaration(), made)
    report = embed_corpus(home, declaration(), embedder()[0])
    assert (report.counts["new"], report.counts["reused"]) == (3, 4)
    assert report.checks[0].passed


@pytest.mark.parametrize("cache", ["kept", "deleted"])
def test_case_o39_a_model_changed_and_changed_back(home: Home, case, cache: str) -> None:
    expected = case("o39")["expected"]
    write_chunks(home, TEXTS)
    dimensions = []
    for model, dimension in (("A", 384), ("B", 768), ("A", 384)):
        if len(dimensions) == 2 and cache == "deleted":
            drop_vectors(home)
        made, _ = embedder(model=model, dimension=dimension)
        report = embed_corpus(home, declaration(), made)
        found = vector_reader(home, "small", str(report.metadata["vector_set"]))([sha(text) for text in TEXTS])
        assert np.isfinite(found).all()
        assert len(found) == expected["points_after_each"][len(dimensions)]
        dimensions.append(found.shape[1])
    assert dimensions == expected["vectors_dim"]
    assert report.counts["new"] == expected["computed_last_step"][cache]


def test_case_g06_an_upgrade_keeps_vectors_that_agree_and_never_mixes_those_that_do_not(home: Home) -> None:
    write_chunks(home, TEXTS)
    first = embed_corpus(home, declaration(), embedder(libraries="made=1")[0])
    agreeing = embed_corpus(home, declaration(), embedder(libraries="made=2", tilt=1e-4)[0])
    assert agreeing.counts["new"] == 0
    assert agreeing.data_version == first.data_version
    moved = embed_corpus(home, declaration(), embedder(libraries="made=3", tilt=0.1)[0])
    assert moved.counts["new"] == 4
    assert moved.metadata["vector_set"] != first.metadata["vector_set"]
    assert moved.data_version != first.data_version
    # Back to the old library: its own set is still there and is used again, unmixed.
    back = embed_corpus(home, declaration(), embedder(libraries="made=2", tilt=1e-4)[0])
    assert back.counts["new"] == 0
    assert back.data_version == first.data_version
    assert len(home.tables.read("small", MODELS)) == 2


def test_case_g06_a_slow_drift_is_measured_from_the_beginning(home: Home) -> None:
    write_chunks(home, TEXTS)
    sets = {
        embed_corpus(home, declaration(), embedder(libraries=f"made={step}", tilt=0.01 * step)[0]).metadata[
            "vector_set"
        ]
        for step in range(4)
    }
    assert len(sets) == 2


def quarantined(home: Home) -> dict[str, str]:
    rows = home.tables.read("small", QUARANTINE).to_pylist()
    assert all(row["doc_id"] in row["reason"] and row["kind"] in row["reason"] for row in rows)
    return {row["location"].removeprefix("chunk "): row["kind"] for row in rows}


def test_case_o33_vectors_that_cannot_be_found_are_quarantined_by_document_and_kind(home: Home, case) -> None:
    expected = case("o33")["expected"]
    dimension = case("o33")["input"]["dim"]
    planted = {
        "bad first nan": [np.nan] + [1.0] * (dimension - 1),
        "bad all nan": [np.nan] * dimension,
        "bad infinite": [np.inf] + [1.0] * (dimension - 1),
        "bad zero": [0.0] * dimension,
    }
    good = [f"good text {number}" for number in range(case("o33")["input"]["good"])]
    write_chunks(home, [*good, *planted, "  "])
    report = embed_corpus(home, declaration(), embedder(dimension=dimension, planted=planted)[0])
    assert report.counts["quarantined"] == expected["quarantined"] == 5
    assert report.counts["new"] == expected["points"]
    assert report.checks[0].passed
    kinds = quarantined(home)
    assert kinds[chunk_id("bad first nan")] == kinds[chunk_id("bad all nan")] == "nan vector"
    assert kinds[chunk_id("bad zero")] == "zero vector"
    assert kinds[chunk_id("  ")] == "blank text"
    # A better model later: the rows leave the quarantine and the texts enter the cache.
    repaired = embed_corpus(home, declaration(), embedder(dimension=dimension)[0])
    assert (repaired.counts["new"], repaired.counts["quarantined"]) == (4, 1)
    assert set(quarantined(home).values()) == {"blank text"}


def test_case_r32_nan_and_infinity_are_refused_each_by_its_name(home: Home, case) -> None:
    vectors = {key: [float(value) for value in vector] for key, vector in case("r32")["input"]["vectors"].items()}
    write_chunks(home, list(vectors))
    embed_corpus(home, declaration(), embedder(dimension=2, planted=vectors)[0])
    kinds = quarantined(home)
    assert {chunk_id(key) for key in case("r32")["expected"]["quarantined"]} <= set(kinds)
    assert kinds[chunk_id("3")] == "zero vector"
    assert {chunk_id(key) for key in case("r32")["expected"]["retrievable"]}.isdisjoint(kinds)


def test_case_g07_blank_texts_are_never_embedded(home: Home, case) -> None:
    texts = case("g07")["input"]["texts"]
    made, backend = embedder()
    write_chunks(home, texts)
    report = embed_corpus(home, declaration(), made)
    blank = [text for text in texts if not text.strip()]
    assert (report.counts["new"], report.counts["quarantined"]) == (len(texts) - len(blank), len(blank))
    stored = home.tables.read("small", EMBEDDINGS)["text_sha256"].to_pylist()
    assert sum(sha(text) in stored for text in blank) == case("g07")["expected"]["empty_chunks_indexed"]
    assert backend.texts_run == 5 + 1


def test_case_g04_nothing_is_named_after_the_floats(home: Home, tmp_path) -> None:
    """The same texts through a backend whose last bits differ give the same data version."""
    from georag_assets.settings import Settings

    versions = set()
    for number, tilt in enumerate((0.0, 1e-7)):
        other = Home(Settings(home=tmp_path / str(number)))
        write_chunks(other, TEXTS)
        versions.add(embed_corpus(other, declaration(), embedder(tilt=tilt)[0]).data_version)
    assert len(versions) == 1


def test_what_a_vector_was_made_with_can_be_read_back(home: Home) -> None:
    write_chunks(home, TEXTS)
    report = embed_corpus(home, declaration(), embedder()[0])
    (row,) = home.tables.read("small", MODELS).to_pylist()
    assert row["model_fingerprint"] == report.metadata["vector_set"]
    assert json.loads(row["identity_json"])["max_length"] == 256
