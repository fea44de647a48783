"""PDF: one document per file, the text of its pages in order, a form feed between two.

What belongs here: pages to text. What does not: recognising the text of scanned pages; they are counted and named.
The form feeds are what a chunk's page numbers are counted from (`corpus.chunk_stage`), so no page may hold one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from georag_assets.corpus.declaration import CorpusDeclaration, Source
from georag_assets.corpus.models import PAGE_BREAK, PDF, Document
from georag_assets.corpus.sources.loader import Rejection, SourceFile, UnusableError
from georag_assets.corpus.sources.text import check_text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|[\ud800-\udfff]")
_NAMED_PAGES = 50


class PdfLoader:
    """A PDF file; its title is what its metadata states, else its file's name.

    `fields` of the document: `pages`, and `pages_without_text` where there are such.
    """

    formats: tuple[str, ...] = ("pdf",)

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield the file's one document."""
        try:
            yield self._document(file, int(declaration.max_document_mb * 2**20))
        except UnusableError as error:
            yield Rejection(file.name, file.name, file.name, error.kind, error.reason)

    def _document(self, file: SourceFile, limit: int) -> Document:
        try:
            if not file.path.is_file():
                raise UnusableError("not_a_file", "expected a file, found something else")
            if (size := file.path.stat().st_size) > limit:
                raise UnusableError("too_large", f"{size:,} bytes; max_document_mb allows {limit:,}")
            pages, title = _read(file)
        except OSError as error:
            raise UnusableError("unreadable", f"cannot be read: {error.strerror or error}") from error
        blank = [number for number, page in enumerate(pages, start=1) if not page.strip()]
        if len(blank) == len(pages):
            raise UnusableError(
                "no_text", f"none of its {len(pages)} pages has a text: scanned? recognise the text first"
            )
        text = PAGE_BREAK.join(pages)
        check_text(text)
        fields = {"pages": str(len(pages))}
        if blank:
            named = ", ".join(map(str, blank[:_NAMED_PAGES]))
            fields["pages_without_text"] = named + (", ..." if len(blank) > _NAMED_PAGES else "")
        return Document(
            doc_id=file.name,
            text=text,
            title=title or file.path.stem,
            source=file.name,
            location=f"{file.name}:1",
            media_type=PDF,
            content_sha256="",
            fields=fields,
        )


def _read(file: SourceFile) -> tuple[list[str], str | None]:
    """Return the text of each page and the stated title."""
    import pypdf
    from pypdf.errors import PyPdfError

    try:
        reader = pypdf.PdfReader(file.path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnusableError("encrypted", "the file needs a password; save it without one")
        pages = [_plain(page.extract_text()) for page in reader.pages]
        title = reader.metadata.title if reader.metadata is not None else None
    except UnusableError:
        raise
    except PyPdfError as error:
        raise UnusableError("not_pdf", f"the file is damaged or no PDF: {_first_line(error)}") from error
    except OSError:
        raise
    except Exception as error:  # a damaged file leads the parser into every kind of error
        raise UnusableError("not_pdf", f"the file is damaged: {type(error).__name__} {_first_line(error)}") from error
    if not pages:
        raise UnusableError("no_text", "the file has no page")
    return pages, " ".join(str(title).split()) or None if title else None


def _plain(text: str) -> str:
    """Return a page's text with plain line ends, without what fonts leave: control characters, half surrogates."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(" ", lines).strip("\n") + "\n"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
