"""PDF: the text of its pages, page numbers down to the evidence, and what cannot be read told."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pypdf
import pytest
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, PageBreak, Paragraph, SimpleDocTemplate

from georag_assets.corpus.chunk_stage import chunk_corpus
from georag_assets.corpus.models import CHUNKS, PAGE_BREAK
from georag_assets.corpus.versions import publish_version
from georag_assets.home import Home
from georag_assets_tests.conftest import REPOSITORY
from georag_assets_tests.corpus.sources import declared, documents, quarantined, synced

AVA = REPOSITORY / "georag_assets" / "defs" / "ava" / "docs"


def pdf(pages: Sequence[str], title: str | None = None) -> bytes:
    """Return a PDF with a page for each text, line by line."""
    made = io.BytesIO()
    canvas = Canvas(made, pagesize=A4)
    if title is not None:
        canvas.setTitle(title)
    for page in pages:
        for number, line in enumerate(page.splitlines()):
            canvas.drawString(60, 780 - 14 * number, line)
        canvas.showPage()
    canvas.save()
    return made.getvalue()


def encrypted(data: bytes, password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(data))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    made = io.BytesIO()
    writer.write(made)
    return made.getvalue()


def test_pages_follow_each_other_with_a_break_between(home: Home, tmp_path: Path) -> None:
    (tmp_path / "report.pdf").write_bytes(pdf(["The weir\nwas raised.", "", "A gauge reads 7 m."], "Weir report"))
    synced(home, declared(tmp_path, ["*.pdf"]))
    document = documents(home)["report.pdf"]
    assert document.text.split(PAGE_BREAK) == ["The weir\nwas raised.\n", "\n", "A gauge reads 7 m.\n"]
    assert document.title == "Weir report"
    assert document.media_type == "application/pdf"
    assert document.fields == {"pages": "3", "pages_without_text": "2"}


def test_a_real_text_set_as_pdf_is_read_back_word_for_word(home: Home, tmp_path: Path) -> None:
    """A long viticultural area, typeset on A4: every word of it, in order, and no page lost."""
    text = max((path.read_text(encoding="utf-8") for path in AVA.glob("*.md")), key=len)
    style = getSampleStyleSheet()["Normal"]
    shown = [part.replace("&", "&amp;").replace("<", "&lt;") for part in text.split("\n\n")]
    flow: list[Flowable] = [Paragraph(part, style) for part in shown]
    SimpleDocTemplate(str(tmp_path / "area.pdf"), pagesize=A4).build([*flow, PageBreak(), Paragraph("The end.", style)])
    synced(home, declared(tmp_path, ["area.pdf"]))
    document = documents(home)["area.pdf"]
    assert int(document.fields["pages"]) > 3
    assert document.text.split() == [*text.split(), "The", "end."]


def test_a_chunk_says_which_pages_its_words_stand_on(home: Home, tmp_path: Path) -> None:
    said = "The boundary follows the ridge to the quarry and descends along the creek to the old mill. " * 5
    pages = [f"Page {number} begins.\n" + said.replace(". ", ".\n") for number in range(1, 7)]
    (tmp_path / "long.pdf").write_bytes(pdf(pages))
    (tmp_path / "plain.md").write_text("# No pages\n\nhere\n")
    declaration = declared(tmp_path, ["*.pdf", "*.md"], budget=64)
    synced(home, declaration)
    publish_version(home, declaration)
    assert not chunk_corpus(home, declaration).blocked
    rows = sorted(home.tables.read("corpus", CHUNKS).to_pylist(), key=lambda row: (row["doc_id"], row["start"]))
    text = documents(home)["long.pdf"].text
    paged = [row for row in rows if row["doc_id"] == "long.pdf"]
    assert len(paged) > 6
    for row in paged:
        words = text[row["start"] : row["end"]].strip()
        first = text.index(words, row["start"])
        assert row["page_first"] == 1 + text.count(PAGE_BREAK, 0, first)
        assert row["page_last"] == 1 + text.count(PAGE_BREAK, 0, first + len(words))
    assert paged[0]["page_first"] == 1
    assert paged[-1]["page_last"] == 6
    assert [(row["page_first"], row["page_last"]) for row in rows if row["doc_id"] == "plain.md"] == [(None, None)]


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        (pdf(["", ""]), "no_text", "none of its 2 pages has a text"),
        (encrypted(pdf(["secret"]), "word"), "encrypted", "password"),
        (pdf(["A text."])[:200], "not_pdf", "damaged"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 20, "not_pdf", "damaged"),
        (b"", "not_pdf", "damaged"),
        (b"not a pdf at all", "not_pdf", "damaged"),
    ],
    ids=["scanned", "encrypted", "cut off", "rubbish", "empty", "another file"],
)
def test_what_cannot_be_read_is_quarantined_with_its_reason(
    home: Home, tmp_path: Path, content: bytes, kind: str, says: str
) -> None:
    (tmp_path / "bad.pdf").write_bytes(content)
    (tmp_path / "good.pdf").write_bytes(pdf(["The quarry closed."]))
    synced(home, declared(tmp_path, ["*.pdf"]))
    assert list(documents(home)) == ["good.pdf"]
    found, reason = quarantined(home)["bad.pdf"]
    assert found == kind
    assert says in reason


def test_a_file_that_is_only_protected_against_changes_is_read(home: Home, tmp_path: Path) -> None:
    (tmp_path / "open.pdf").write_bytes(encrypted(pdf(["The quarry closed."]), ""))
    synced(home, declared(tmp_path, ["*.pdf"]))
    assert documents(home)["open.pdf"].text == "The quarry closed.\n"


def test_a_large_file_is_left_unread(home: Home, tmp_path: Path) -> None:
    (tmp_path / "large.pdf").write_bytes(pdf(["The quarry closed."] * 40))
    synced(home, declared(tmp_path, ["*.pdf"], max_document_mb=0.005))
    assert quarantined(home)["large.pdf"][0] == "too_large"
