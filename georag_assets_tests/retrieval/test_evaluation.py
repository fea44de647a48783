"""Figures over labelled queries, and what a complete answer must say."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from georag_assets.errors import SourceError
from georag_assets.retrieval.evaluation import Figures, _figures, _measured
from georag_assets.retrieval.queries import LabelledQuery, read_queries


def query(*relevant: str, ignored: tuple[str, ...] = ()) -> LabelledQuery:
    return LabelledQuery("q", frozenset(relevant), frozenset(ignored))


def test_recall_rank_and_gain_of_one_query():
    recall, reciprocal, gain = _measured(query("a", "b"), ["x", "a", "y", "z", "b"], 4)
    assert (recall, reciprocal) == (0.5, 0.5)
    assert gain == pytest.approx((1 / 1.5849625 + 1 / 2.5849625) / (1 + 1 / 1.5849625))


def test_ignored_documents_take_no_rank():
    assert _measured(query("a", ignored=("x",)), ["x", "a"], 1)[:2] == (1.0, 1.0)


def test_a_refused_query_is_a_miss():
    assert _measured(query("a"), [], 8) == (0.0, 0.0, 0.0)


def test_a_rank_beyond_k_counts_in_no_figure_but_gain():
    recall, reciprocal, gain = _measured(query("a"), ["x", "y", "a"], 2)
    assert (recall, reciprocal) == (0.0, 0.0) and gain == pytest.approx(0.5)


def test_figures_are_means():
    assert _figures([(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]) == Figures(2, 0.5, 0.5, 0.5)


def test_queries_are_read_from_plain_and_gzip_lines(tmp_path):
    record = {"query": "wells", "relevant": ["a"], "ignored": ["b"], "bbox": [7, 46, 7.5, 46.5]}
    plain = tmp_path / "q.jsonl"
    plain.write_text(json.dumps(record) + "\n\n", encoding="utf-8")
    with gzip.open(tmp_path / "q.jsonl.gz", "wt", encoding="utf-8") as packed:
        packed.write(json.dumps({**record, "class": "site"}) + "\n")
    read = read_queries(plain)
    assert read == [
        LabelledQuery("wells", frozenset("a"), frozenset("b"), (7.0, 46.0, 7.5, 46.5), "box under 1 degree")
    ]
    assert read_queries(tmp_path / "q.jsonl.gz") == [replace(read[0], label="site")]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"query": " ", "relevant": ["a"]}',
        '{"query": "x"}',
        '{"query": "x", "relevant": []}',
        '{"query": "x", "relevant": ["a"], "bbox": [1, 2, 3]}',
        '{"query": "x", "relevant": ["a"], "bbox": [1, 2, 3, NaN]}',
    ],
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "q.jsonl"
    path.write_text('{"query": "x", "relevant": ["a"]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"q\.jsonl:2"):
        read_queries(path)


def test_a_missing_or_broken_file_is_an_error_of_one_sentence(tmp_path):
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "empty.jsonl").touch()
    for name in ("none.jsonl", "broken.jsonl.gz", "empty.jsonl"):
        with pytest.raises(SourceError):
            read_queries(tmp_path / name)


def test_the_halves_are_halves_and_stable(shared):
    queries = read_queries(shared / "data" / "stanford_ogm" / "queries_catalogue.jsonl.gz")
    held_out = sum(query.half == "held_out" for query in queries)
    assert 0.45 < held_out / len(queries) < 0.55
