"""What a change of one document costs, and what comes back when it is taken back."""

from __future__ import annotations

import shutil
from typing import Any

from georag_assets.corpus.models import CHUNKS
from georag_assets.corpus.versions import newest_version, read_documents
from georag_assets.frames.models import FRAMES
from georag_assets.index import difference
from georag_assets.index.builds import open_build
from georag_assets.index.live import live_build
from georag_assets.index.models import DenseQuery, LexicalQuery, SearchFilter

STAGES = ["documents", "corpus_version", "chunks", "frames", "embeddings", "index_build", "live_index"]


def chunk_ids(corpus: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in corpus.home.tables.read("small", CHUNKS, columns=["doc_id", "chunk_id"]).to_pylist():
        found.setdefault(row["doc_id"].rsplit("/", 1)[-1].removesuffix(".md"), set()).add(row["chunk_id"])
    return found


def live_ids(corpus: Any) -> set[str]:
    with open_build(corpus.home, "small") as build:
        return set(build.columns.ids.astype(str).tolist())


def test_a_change_costs_itself_and_a_correction_returns_to_what_was(corpus):
    first = corpus.build()
    assert list(first) == STAGES
    ids, live, version = chunk_ids(corpus), live_build(corpus.home, "small"), newest_version(corpus.home, "small")
    documents = {document.doc_id: document for document in read_documents(corpus.home, "small")}
    original = corpus.text("altus").read_bytes()

    # One document changed: only its changed passages are new, and only they are embedded.
    corpus.text("altus").write_bytes(original + b"\nThe boundary was resurveyed in 2026.\n")
    changed = corpus.build()
    assert changed["documents"].counts["changed"] == 1
    now = chunk_ids(corpus)
    assert {name for name in ids if ids[name] != now[name]} == {"altus"}
    assert changed["chunks"].counts["new"] == changed["frames"].counts["new"] == len(now["altus"])
    assert changed["embeddings"].counts["new"] == len(now["altus"] - ids["altus"])
    assert live_build(corpus.home, "small") != live
    assert live_ids(corpus) == set().union(*now.values())

    # The earlier version reads back exactly, from documents that have moved on.
    assert {document.doc_id: document for document in read_documents(corpus.home, "small", version)} == documents

    # Put back: the earlier ids, the earlier version, the earlier build; nothing is embedded.
    corpus.text("altus").write_bytes(original)
    back = corpus.build()
    assert chunk_ids(corpus) == ids
    assert back["embeddings"].counts["new"] == 0
    assert newest_version(corpus.home, "small") == version
    assert live_build(corpus.home, "small") == live
    assert live_ids(corpus) == set().union(*ids.values())


def test_a_moved_polygon_is_new_content_of_the_same_text(corpus):
    corpus.build()
    before, version = chunk_ids(corpus), newest_version(corpus.home, "small")
    corpus.move_polygon("long_island", 0.01)
    moved = corpus.build()
    after = chunk_ids(corpus)
    assert moved["documents"].counts["changed"] == 1
    assert newest_version(corpus.home, "small") != version
    assert {name for name in before if before[name] != after[name]} == {"long_island"}
    assert not before["long_island"] & after["long_island"], "an id names text and geometry"
    assert moved["embeddings"].counts["new"] == 0, "the text is the same"
    rows = corpus.home.tables.read("small", FRAMES, columns=["chunk_id", "west"]).to_pylist()
    west = {row["chunk_id"]: row["west"] for row in rows}
    expected = float(corpus.polygons[corpus.polygons["id"] == "long_island"].total_bounds[0])
    assert all(abs(west[chunk_id] - expected) < 1e-9 for chunk_id in after["long_island"])
    corpus.move_polygon("long_island", -0.01)


def test_a_removed_document_leaves_with_its_chunks(corpus):
    corpus.build()
    before = chunk_ids(corpus)
    corpus.text("cole_ranch").unlink()
    gone = corpus.build()
    assert gone["documents"].counts["removed"] == 1
    after = chunk_ids(corpus)
    assert after == {name: ids for name, ids in before.items() if name != "cole_ranch"}
    assert gone["embeddings"].counts["new"] == 0
    assert live_ids(corpus) == set().union(*after.values())
    rows = corpus.home.tables.read("small", FRAMES, columns=["chunk_id"])["chunk_id"].to_pylist()
    assert set(rows) == set().union(*after.values())


def test_nothing_changed_is_nothing_done(corpus):
    first, second = corpus.build(), corpus.build()
    assert {name: report.data_version for name, report in first.items()} == {
        name: report.data_version for name, report in second.items()
    }
    assert all(second[stage].counts["new"] == 0 for stage in ("documents", "chunks", "frames", "embeddings"))
    assert second["index_build"].metadata["reused"]


def answers(corpus: Any) -> tuple[Any, ...]:
    """Return everything that a reader can see of the live build: points, payloads, places, search results."""
    with open_build(corpus.home, "small") as build:
        ids = sorted(build.columns.ids.astype(str).tolist())
        vector = corpus.embedder.encode(["a ridge line above the valley"])[0]
        dense = build.search(DenseQuery(vector), SearchFilter(), 50).hits
        lexical = build.search(LexicalQuery("boundary resurveyed contour"), SearchFilter(), 50).hits
        return (
            build.payloads(ids),
            [geometry.wkb for geometry in build.geometries(ids)],
            [(hit.chunk_id, round(hit.score, 5)) for hit in dense],
            {hit.chunk_id for hit in lexical},
            {name: build.columns.present(name) for name in ("epsg", "licence", "west", "corpus_version")},
        )


def recall_without_plan(stages):
    check = next(check for check in stages["index_build"].checks if check.name == "filtered_recall")
    return check.detail["table"]["rows"][0]["recall_off"]


def test_a_build_that_continues_another_answers_as_one_written_whole(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(difference, "MOST_CHANGED", 9.0)
    monkeypatch.setattr(difference, "MOST_DRIFT", 9.0)
    first = corpus.build()
    assert first["index_build"].metadata["continues"] is None
    corpus.text("altus").write_bytes(corpus.text("altus").read_bytes() + b"\nThe boundary was resurveyed in 2026.\n")
    corpus.text("cole_ranch").unlink()
    corpus.move_polygon("long_island", 0.01)
    continued = corpus.build()
    assert continued["index_build"].metadata["continues"] == first["live_index"].metadata["build"]
    assert continued["live_index"].counts["promoted"] == 1, "every check ran on it and passed"
    assert recall_without_plan(first) == 1.0
    assert recall_without_plan(continued) is None, "what the plan is worth was measured on the whole build"
    found = answers(corpus)
    monkeypatch.setattr(difference, "MOST_CHANGED", 0.0)
    shutil.rmtree(corpus.home.corpus_folder("small"))
    whole = corpus.build()
    assert whole["index_build"].metadata["continues"] is None
    assert whole["live_index"].metadata["corpus_version"] == continued["live_index"].metadata["corpus_version"]
    assert answers(corpus) == found


def test_a_chain_of_continued_builds_ends_with_a_whole_one(corpus, monkeypatch):
    monkeypatch.setattr(difference, "MOST_CHANGED", 9.0)
    monkeypatch.setattr(difference, "MOST_DRIFT", 1.2)
    corpus.build()
    continued = []
    for number in range(4):
        corpus.text("altus").write_bytes(corpus.text("altus").read_bytes() + b"\nResurveyed again, %d.\n" % number)
        continued.append(corpus.build()["index_build"].metadata["continues"] is not None)
    assert continued[0] and not all(continued)
