"""Marked-up texts: reStructuredText and AsciiDoc as they stand, HTML as the Markdown that a reader would see."""

from __future__ import annotations

from pathlib import Path

import pytest

from georag_assets.corpus.sources.text import MarkdownLoader
from georag_assets.corpus.structure import read_structure
from georag_assets.geometry.scan import scan
from georag_assets.home import Home
from georag_assets_tests.corpus.sources import declared, documents, quarantined, synced, write_texts

PAGE = """<!DOCTYPE html><html><head><title>Wells of
  the valley</title><style>p {}</style><script>var POINT = "POINT (1 1)";</script></head><body>
<h1>Wells</h1><p>The first lies at <b>46°</b> 30' N, <i>7°</i> 15' E.</p>
<p>Its plot: POLYGON <code>((7 46, 8 46, <b>8 47</b>, 7 46))</code> &amp; no more.</p>
<ul><li>deep</li><li>old</li></ul>
<table><thead><tr><th>name | id</th><th>lat</th><th>lon</th></tr></thead>
<tbody><tr><td>A|1</td><td>46.5</td><td>7.25</td></tr><tr><td>B</td><td>46.6</td><td>7.35</td></tr></tbody></table>
<h2>Below</h2><p>End.</p></body></html>"""


def test_a_page_is_what_its_reader_sees(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"wells.html": PAGE})
    synced(home, declared(tmp_path, ["*.html"]))
    document = documents(home)["wells.html"]
    assert document.title == "Wells of the valley"
    assert (document.media_type, document.source) == ("text/markdown", "wells.html")
    assert [(heading.level, heading.title) for heading in read_structure(document.text).headings] == [
        (1, "Wells"),
        (2, "Below"),
    ]
    assert "var POINT" not in document.text
    assert "* deep\n* old\n" in document.text
    assert r"| A\|1 | 46.5 | 7.25 |" in document.text
    assert "& no more" in document.text


def test_markup_inside_a_coordinate_does_not_part_it(home: Home, tmp_path: Path) -> None:
    write_texts(tmp_path, {"wells.html": PAGE})
    synced(home, declared(tmp_path, ["*.html"]))
    shapes = {
        literal.kind: literal.geometry.wkt
        for literal in scan(documents(home)["wells.html"].text)
        if literal.geometry is not None
    }
    assert shapes["wkt"] == "POLYGON ((7 46, 8 46, 8 47, 7 46))"
    assert shapes["dms"] == "POINT (7.25 46.5)"


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("<html><head><title>x</title></head><body><script>1</script></body></html>", "empty"),
        ("<div>" * 20_000 + "deep" + "</div>" * 20_000, "too_deep"),
        ("", "empty"),
        (b"<p>Z\xfcrich</p>", "wrong_encoding"),
    ],
)
def test_a_page_that_holds_no_text(home: Home, tmp_path: Path, page: str | bytes, kind: str) -> None:
    write_texts(tmp_path, {"bad.html": page, "good.htm": "<p>Good"})
    synced(home, declared(tmp_path, ["*.htm*"]))
    assert [document.text for document in documents(home).values()] == ["Good\n"]
    assert quarantined(home)["bad.html"][0] == kind


@pytest.mark.shared
@pytest.mark.parametrize(
    ("folder", "name", "title", "headings"),
    [
        ("proj_docs", "apps__cct.rst", "cct", {(1, "cct"), (2, "Synopsis"), (2, "Background")}),
        ("ogc_docs", "features__extensions__crs__standard__clause_6_crs.adoc",
         "Requirements Class Coordinate Reference Systems by Reference", {(3, "Discovery"), (4, "Storage CRS")}),
    ],
)  # fmt: skip
def test_real_texts_have_their_titles_and_headings(
    home: Home, shared: Path, folder: str, name: str, title: str, headings: set[tuple[int, str]]
) -> None:
    path = shared / "data" / folder
    synced(home, declared(path, [name]))
    document = documents(home)[name]
    assert document.title == title
    assert document.text == (path / name).read_bytes().decode()
    assert headings <= {(heading.level, heading.title) for heading in read_structure(document.text).headings}


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("% Ordinance  on zones\n% 18 January 2022\n\n# Preamble\n\nWords.\n", "Ordinance on zones"),
        ('---\r\nid: "12"\r\ntitle: "Fishing rules"\r\n---\r\n# Chapter 1\r\n', "Fishing rules"),
        ("---\nid: 12\n---\n# Chapter 1\n\ntitle: not this\n", "Chapter 1"),
        ("Words.\n\n% no title\n\n# Chapter 1\n", "Chapter 1"),
    ],
)
def test_markdown_states_its_title_before_its_first_heading(text: str, title: str) -> None:
    assert MarkdownLoader().title(text) == title


def test_a_block_title_of_asciidoc_is_no_heading() -> None:
    assert read_structure("text\n\n.itemId\n=======\nan example\n=======\n").headings == []
