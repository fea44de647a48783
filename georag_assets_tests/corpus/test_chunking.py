"""Chunks: whole geometries, exact slices, exact cover, the budget, what they stand under, and their identity."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from georag_assets.corpus.chunking import Unit, chunk_document, chunk_text
from georag_assets.corpus.models import Chunk, Document
from georag_assets.corpus.tokens import ModelTokenizer, Tokenizer
from georag_assets.geometry.scan import scan


@dataclass(frozen=True)
class Characters:
    """A measure that counts characters, for cases whose sizes are in characters."""

    max_tokens: int = 100_000
    specials: int = 0
    additive: bool = True

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(position, position + 1) for position in range(len(text))]

    def count(self, text: str) -> int:
        return len(text)


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer.load("all-MiniLM-L6-v2")


def document(text: str, doc_id: str = "d", title: str = "") -> Document:
    return Document(doc_id, text, title, doc_id, doc_id, "text/plain", "")


def chunks_of(
    text: str, budget: int, unit: Unit = "document", tokenizer: Tokenizer | None = None, title: str = ""
) -> list[Chunk]:
    return chunk_document(
        document(text, title=title), corpus="c", unit=unit, budget=budget, tokenizer=tokenizer or Characters()
    )


def assert_sound(text: str, chunks: Sequence[Chunk]) -> None:
    """Assert exact slices, exact cover, whole literals, distinct ids."""
    assert "".join(chunk.text for chunk in chunks) == text
    position = 0
    for chunk in chunks:
        assert chunk.start == position
        assert text[chunk.start : chunk.end] == chunk.text
        assert chunk.text
        position = chunk.end
    assert [each for chunk in chunks for each in chunk.literals] == list(scan(text))
    for chunk in chunks:
        own = [(each.start + chunk.start, each.literal) for each in scan(chunk.text)]
        assert own == [(each.start, each.literal) for each in chunk.literals]
    assert len({chunk.chunk_id for chunk in chunks}) == len(chunks)


def test_a_text_within_the_budget_is_one_chunk(tokenizer: ModelTokenizer) -> None:
    (chunk,) = chunk_text("The weir was raised in 1961.", tokenizer=tokenizer)
    assert chunk.embedded_text == "The weir was raised in 1961."
    assert chunk.token_count == tokenizer.count(chunk.embedded_text)
    assert chunk.flags == ()
    assert chunk_text("", tokenizer=tokenizer) == []


def test_the_strongest_break_is_taken() -> None:
    text = "# One\n\nFirst. Second is longer.\n\nThird paragraph here.\n\n# Two\n\nFourth, fifth; sixth.\n"
    sections = chunks_of(text, 500, "section")
    assert [chunk.text[:5] for chunk in sections] == ["# One", "# Two"]
    paragraphs = chunks_of(text, 45)
    assert [chunk.text.split()[0] for chunk in paragraphs] == ["#", "Third", "#"]
    assert paragraphs[1].context == "One"
    assert_sound(text, paragraphs)


def test_a_heading_is_never_parted_from_what_it_heads() -> None:
    text = "# Alpha\n\n## Beta\n\nWords of beta that go on.\n\n## Gamma\n\nWords of gamma that go on.\n"
    chunks = chunks_of(text, 60, "section")
    assert [chunk.text.split("\n")[0] for chunk in chunks] == ["# Alpha", "## Gamma"]
    assert chunks[1].context == "Alpha"


def test_headings_of_every_markup_are_paths() -> None:
    restructured = "=====\nAlpha\n=====\n\nWords.\n\nBeta\n----\n\nMore words here.\n"
    asciidoc = "= Alpha\n\nWords.\n\n== Beta\n\nMore words here.\n\n[source]\n----\n# no heading\n----\n"
    for text in (restructured, asciidoc):
        chunks = chunks_of(text, 200, "section")
        assert_sound(text, chunks)
        assert [chunk.context for chunk in chunks] == ["", "Alpha"]
        assert "Beta" in chunks[1].text


def test_a_rule_under_a_heading_is_no_second_heading() -> None:
    text = "# Layer\n\nWords.\n\n## 1. Purpose\n-----------------\nWords of purpose.\n\nMore words of it.\n"
    chunks = chunks_of(text, 50, "section")
    assert_sound(text, chunks)
    assert [chunk.context for chunk in chunks] == ["", "Layer", "Layer > 1. Purpose"]
    assert chunks[1].text == "## 1. Purpose\n-----------------\nWords of purpose.\n\n"


@pytest.mark.parametrize(
    "text",
    [
        ".. _alpha:\n\n=====\nAlpha\n=====\n\nWords.\n\n.. _beta:\n\nBeta\n----\n\nMore words.\n",
        "[appendix]\n[[alpha]]\n= Alpha\n\nWords.\n\n[[beta]]\n== Beta\n\nMore words.\n",
    ],
)
def test_an_anchor_belongs_to_the_heading_below_it(text: str) -> None:
    chunks = chunks_of(text, 200, "section")
    assert_sound(text, chunks)
    assert [chunk.context for chunk in chunks] == ["", "Alpha"]
    assert "beta" in chunks[1].text.splitlines()[0]


def test_blanks_before_the_first_word_are_no_piece() -> None:
    text = " \n\n# Alpha\n\nWords of alpha.\n\n# Beta\n\nWords of beta.\n"
    for unit in ("document", "section", "feature"):
        chunks = chunks_of(text, 40, unit)  # type: ignore[arg-type]
        assert_sound(text, chunks)
        assert [chunk.text.split()[1] for chunk in chunks] == ["Alpha", "Beta"]


def test_an_id_in_the_place_of_a_title_is_no_context() -> None:
    text = "The first sentence. The second one.\n"
    for title, context in (("d", ""), ("A report", "A report")):
        chunks = chunks_of(text, 32, title=title)
        assert [chunk.context for chunk in chunks] == ["", context]


def test_lists_without_blanks_are_cut_between_their_items() -> None:
    villages = "甘棠社区、企石村、山峰村、长冲村、蔡家村"
    assert [chunk.text for chunk in chunks_of(villages, 12)] == ["甘棠社区、企石村、", "山峰村、长冲村、蔡家村"]
    links = "[2020](https://a.example/x)<br>[2018](https://a.example/y)<BR/>[2016](https://a.example/z)"
    assert [chunk.text[:6] for chunk in chunks_of(links, 40)] == ["[2020]", "[2018]", "[2016]"]


def test_abbreviations_and_ordinals_end_no_sentence() -> None:
    text = "Am 24. April nach Nr. 5 Abs. 2 gilt dies. Danach gilt es nicht. St. Helena, Calif. U.S. Maps apply."
    assert [chunk.text.strip() for chunk in chunks_of(text, 45)][:2] == [
        "Am 24. April nach Nr. 5 Abs. 2 gilt dies.",
        "Danach gilt es nicht.",
    ]


def test_numbers_and_words_stay_whole_in_the_last_resort() -> None:
    text = "Corner B: Easting 2,612,145.74 m, Northing 1,267,711.02 m (LV95)."
    pieces = [chunk.text for chunk in chunks_of(text, 24)]
    assert any("2,612,145.74" in piece for piece in pieces)
    assert any("1,267,711.02" in piece for piece in pieces)


def test_a_literal_over_the_budget_is_one_flagged_chunk(case: Callable[[str], Any]) -> None:
    a01 = case("a01")["input"]
    chunks = chunks_of(a01["text"], a01["chunk_size_chars"])
    assert_sound(a01["text"], chunks)
    (holder,) = [chunk for chunk in chunks if chunk.literals]
    assert "oversize" in holder.flags
    shape = holder.literals[0].geometry
    assert shapely.get_num_coordinates(shape) == 25
    assert shapely.bounds(shape).tolist() == [7.0, 46.0, 7.23, 46.08]


def test_feature_over_the_limit_is_whole_and_says_so(case: Callable[[str], Any]) -> None:
    feature = case("a02")["input"]["feature"]
    (chunk,) = chunks_of(json.dumps(feature), 256, "feature")
    assert json.loads(chunk.text) == feature
    assert chunk.feature_ids == ("w-17",)
    assert "oversize" in chunk.flags
    assert "Weir 17" in chunk.embedded_text


def test_tables_are_cut_between_rows_and_repeat_their_header(case: Callable[[str], Any]) -> None:
    for name in ("a05", "a06"):
        given_case = case(name)["input"]
        text = given_case["markdown"]
        chunks = chunks_of(text, given_case["chunk_size_chars"])
        assert len(chunks) > 2
        assert_sound(text, chunks)
        for chunk in chunks:
            lines = f"{chunk.context}\n{chunk.text}".strip().splitlines()
            assert lines[0] == "| Well | Easting | Northing | CRS |"
            assert set(lines[1]) <= set("|-: ")
            assert all(line.startswith("|") and line.endswith("|") for line in chunk.text.strip().splitlines())
        assert sum(chunk.text.count("| W") for chunk in chunks) - 1 == 12
    rows = case("a07")["input"]
    chunks = chunks_of(rows["markdown"], rows["chunk_size_chars"])
    assert_sound(rows["markdown"], chunks)
    assert [line for chunk in chunks for line in chunk.text.splitlines()] == rows["markdown"].splitlines()
    (over,) = [chunk for chunk in chunks if "| 2 |" in chunk.text]
    assert "oversize" in over.flags


def test_a_list_continued_keeps_its_lead_in() -> None:
    text = "The boundary runs as follows:\n\n" + "".join(f"- Proceed to stone {n} on the ridge.\n" for n in range(12))
    chunks = chunks_of(text, 160)
    assert len(chunks) > 2
    assert all(chunk.context == "The boundary runs as follows:" for chunk in chunks[1:])


def test_equal_passages_have_their_own_places_and_ids(case: Callable[[str], Any]) -> None:
    a11 = case("a11")
    text = a11["input"]["text"]
    chunks = chunks_of(text, 12)
    assert_sound(text, chunks)
    assert [chunk.start for chunk in chunks][:3] == a11["expected"]["starts_of_Depth_sentences"]
    (holder,) = [chunk for chunk in chunks if chunk.literals]
    assert holder.literals[0].start == a11["expected"]["start_of_geometry"]


def test_no_more_tokens_than_the_model_reads(case: Callable[[str], Any], tokenizer: ModelTokenizer) -> None:
    g01 = case("g01")["input"]
    text = g01["prefix"] + next((value for key, value in g01.items() if key != "prefix" and isinstance(value, str)), "")
    assert tokenizer.count(text) > tokenizer.max_tokens
    chunks = chunks_of(text, 10_000, tokenizer=tokenizer)
    assert_sound(text, chunks)
    assert all(chunk.token_count == tokenizer.count(chunk.embedded_text) <= 256 for chunk in chunks)


def test_vertices_cost_no_tokens(case: Callable[[str], Any], tokenizer: ModelTokenizer) -> None:
    expected = case("g02")["expected"]
    ring = [(7 + n / 100, 46 + (n % 5) / 50) for n in range(40)]
    literal = "POLYGON ((" + ", ".join(f"{x:.5f} {y:.5f}" for x, y in [*ring[:39], ring[0]]) + "))"
    assert tokenizer.count(literal) > 256
    assert abs(tokenizer.count(literal) / 40 - expected["tokens_per_vertex"]) < 1
    (chunk,) = chunks_of(f"The concession is {literal} since 1998.", 256, tokenizer=tokenizer)
    assert chunk.token_count < 40
    assert "polygon of 40 vertices" in chunk.embedded_text
    assert chunk.literals[0].geometry is not None
    assert "oversize" in chunk.flags


def test_ids_follow_content_and_never_position(case: Callable[[str], Any]) -> None:
    r42 = case("r42")["input"]

    def ids(version: str) -> dict[str, str]:
        text = "\n\n".join(r42[version])
        found = chunk_document(
            document(text, r42["doc_id"]), corpus="c", unit="document", budget=30, tokenizer=Characters()
        )
        assert [chunk.text.strip() for chunk in found] == r42[version]
        return {chunk.text.strip(): chunk.chunk_id for chunk in found}

    first, second, third = ids("v1"), ids("v2"), ids("v3")
    cited = first["The lock was closed in 1974."]
    assert second["The lock was closed in 1974."] == cited
    assert cited not in third.values()
    assert {text: second[text] for text in first} == first
    assert set(third.items()) <= set(first.items())


def test_ids_know_document_corpus_geometry_and_occurrence() -> None:
    text = "Equal words here.\n\nEqual words here.\n\n"
    first, second = chunks_of(text, 20)
    assert first.chunk_id != second.chunk_id
    plain = document("Same text.")
    here = replace(plain, geometry_wkb=shapely.Point(1, 2).wkb, geometry_epsg=4326, feature_ids=("f",))
    moved = replace(here, geometry_wkb=shapely.Point(1, 3).wkb)
    made = [
        chunk_document(each, corpus=corpus, unit="document", budget=50, tokenizer=Characters())[0]
        for corpus, each in (("c", plain), ("c", here), ("c", moved), ("d", plain), ("c", replace(plain, doc_id="e")))
    ]
    assert len({chunk.chunk_id for chunk in made}) == 5
    assert [chunk.inherited for chunk in made] == [False, True, True, False, False]
    assert made[1].feature_ids == ("f",)
    own = chunk_document(
        replace(here, text="At POINT (5 6)."), corpus="c", unit="document", budget=50, tokenizer=Characters()
    )
    assert not own[0].inherited


@pytest.mark.parametrize("layout", [{"indent": 2}, {"separators": (",", ":")}])
def test_a_collection_is_cut_between_its_features(layout: dict[str, Any]) -> None:
    features = [
        {
            "type": "Feature",
            "id": n,
            "properties": {"name": f"Weir {n}"},
            "geometry": {"type": "Point", "coordinates": [n, n]},
        }
        for n in range(5)
    ]
    text = json.dumps({"type": "FeatureCollection", "features": features}, **layout)
    chunks = chunks_of(text, 5000, "feature")
    assert_sound(text, chunks)
    assert [chunk.feature_ids for chunk in chunks if chunk.literals] == [("0",), ("1",), ("2",), ("3",), ("4",)]


def test_rows_with_a_place_each_are_features() -> None:
    rows = "".join(f"| W{n:02} | {2600000 + n} | {1200000 + n} |\n" for n in range(4))
    text = f"| Well | Easting | Northing |\n|---|---|---|\n{rows}"
    assert sum(len(chunk.literals) for chunk in chunks_of(text, 5000, "feature")) == 4
    assert all(len(chunk.literals) <= 1 for chunk in chunks_of(text, 5000, "feature"))


def test_bare_coordinate_rows_are_described_together(tokenizer: ModelTokenizer) -> None:
    rows = "".join(f"| {n} | {3535000 + n}.5 | {6020000 + n}.5 |\n" for n in range(300))
    text = f"# Zone 1\n\n| Nr. | Y | X |\n|---|---|---|\n{rows}"
    (chunk,) = chunks_of(text, 256, tokenizer=tokenizer)
    assert "table of 300 points around" in chunk.embedded_text
    assert chunk.token_count == tokenizer.count(chunk.embedded_text) < 80
    assert len(chunk.literals) == 300


def test_line_ends_and_odd_characters_keep_their_offsets() -> None:
    for text in (
        "One.\r\n\r\nTwo at POINT (1 2).\r\nThree.\r",
        "\ufeffSéracs à 46°00′ N — “Géant”.\u2028Next 𝒳 line.\x00",
        " \n\n ",
    ):
        assert_sound(text, chunks_of(text, 12))


def test_without_a_safe_break_the_document_is_one_flagged_chunk() -> None:
    (chunk,) = chunks_of("x" * 500, 100)
    assert {"whole_document", "oversize"} <= set(chunk.flags)


def test_truncation_is_flagged_and_counted(tokenizer: ModelTokenizer) -> None:
    (chunk,) = chunks_of("| " + "word " * 400 + "|", 256, tokenizer=tokenizer)
    assert "truncated" in chunk.flags
    assert chunk.token_count > 400


@pytest.mark.parametrize(
    "unit", ["(", "1", "POLYGON((1 1,", "word ", "a.", "| 1 | 2 |\n", "# h\n", "(1) A", "7.1234 8.1234\n"]
)
def test_hostile_text_costs_time_in_proportion(unit: str) -> None:
    def seconds(length: int) -> float:
        text = unit * (length // len(unit))
        started = time.process_time()
        assert_cover(text, chunks_of(text, 500))
        return time.process_time() - started

    seconds(10_000)
    assert seconds(160_000) < 40 * seconds(20_000) + 0.5


def assert_cover(text: str, chunks: Sequence[Chunk]) -> None:
    assert "".join(chunk.text for chunk in chunks) == text


_piece = st.one_of(
    st.sampled_from(
        [
            "\n\n", "\n", " ", "# Heading\n\n", "## Sub\n", "- item ", "(1) Proceed to ", "| a | b |\n", "|---|---|\n",
            "```\n", "POLYGON((0 0, 1 0, 1 1, 0 0))", "54° 06' N; 010° 48' E", "47.0551, 8.3093",
            '{"type":"Point","coordinates":[7,46]}',
            "| 3535093.4 | 6020462.4 |\n", "SRID=2056;POINT(2600000 1200000)", "\r\n", "Title\n=====\n",
        ]
    ),
    st.text(alphabet="abcÄé. ,;:()|#°'\"\n", max_size=20),
)  # fmt: skip


@given(
    st.lists(_piece, min_size=1, max_size=30).map("".join),
    st.sampled_from([12, 40, 150]),
    st.sampled_from(["feature", "section", "document"]),
)
@settings(max_examples=200)
def test_any_text_is_covered_by_whole_literals(text: str, budget: int, unit: Unit) -> None:
    chunks = chunks_of(text, budget, unit, title="A title")
    assert "".join(chunk.text for chunk in chunks) == text
    assert [each for chunk in chunks for each in chunk.literals] == list(scan(text))
    assert len({chunk.chunk_id for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        assert text[chunk.start : chunk.end] == chunk.text
        assert (
            chunk.token_count == len(chunk.embedded_text)
            or chunk.context
            or chunk.literals
            or chunk.text != chunk.embedded_text
        )


@pytest.mark.shared
@pytest.mark.parametrize("folder", ["ava/docs", "laws/de", "postgis_docs", "ogc_docs"])
def test_real_texts(shared: Path, tokenizer: ModelTokenizer, folder: str) -> None:
    tokens = never = 0
    for path in sorted((shared / "data" / folder).iterdir())[:40]:
        if path.suffix not in (".md", ".adoc"):
            continue
        text = path.read_text(encoding="utf-8")
        chunks = chunks_of(text, 256, "section", tokenizer, path.stem)
        assert "".join(chunk.text for chunk in chunks) == text
        assert [each for chunk in chunks for each in chunk.literals] == list(scan(text))
        for chunk in chunks[:20]:
            assert chunk.token_count == tokenizer.count(chunk.embedded_text)
        tokens += sum(chunk.token_count for chunk in chunks)
        never += sum(max(0, chunk.token_count - 256) for chunk in chunks)
    assert never <= 0.05 * tokens
