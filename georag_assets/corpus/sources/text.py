"""Markdown, reStructuredText, AsciiDoc and plain text: one document per file, its text as it stands.

What belongs here: reading bytes as text exactly, and a title. What does not: structure of the text (`chunking`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from georag_assets.corpus.declaration import CorpusDeclaration, Source
from georag_assets.corpus.models import Document
from georag_assets.corpus.sources.loader import Rejection, SourceFile, UnusableError

_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*\r?$", re.MULTILINE)
# Where a Markdown file states its title before its first heading: Pandoc's title block, or YAML.
_STATED_TITLE = re.compile(
    r"\A(?:%[ \t]+(?P<block>\S.*?)|---[ \t]*\r?\n(?:(?!---).*\n)*?title:[ \t]*(?P<yaml>\S.*?))[ \t]*\r?$", re.MULTILINE
)
_ASCIIDOC_HEADING = re.compile(r"^={1,6}[ \t]+(\S.*?)[ \t]*\r?$", re.MULTILINE)
_UNDERLINED = re.compile(r"^(\S.*?)[ \t]*\r?\n([=\-~^\"'`#*+.:_])\2{2,}[ \t]*\r?$", re.MULTILINE)


class PlainTextLoader:
    """A text file; its title is the file's name without suffix."""

    formats: tuple[str, ...] = ("text",)
    media_type = "text/plain"

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield the file's one document."""
        limit = int(declaration.max_document_mb * 2**20)
        try:
            text, title = self.read(file, source.encoding, limit)
        except UnusableError as error:
            yield Rejection(file.name, file.name, file.name, error.kind, error.reason)
            return
        yield Document(
            doc_id=file.name,
            text=text,
            title=title or file.path.stem,
            source=file.name,
            location=f"{file.name}:1",
            media_type=self.media_type,
            content_sha256="",
        )

    def read(self, file: SourceFile, encoding: str, limit: int) -> tuple[str, str | None]:
        """Return the document's text and the title that it states; raise UnusableError where it is unusable."""
        text = read_text(file, encoding, limit)
        return text, self.title(text)

    def title(self, text: str) -> str | None:
        """Return the title that the text states."""
        return None


class MarkdownLoader(PlainTextLoader):
    """A Markdown file; its title is what its front matter states, else its first heading."""

    formats = ("markdown",)
    media_type = "text/markdown"

    def title(self, text: str) -> str | None:
        """Return the title stated at the very beginning, else the first heading of the first 4,000 characters."""
        if stated := _STATED_TITLE.match(text[:4000]):
            words = stated["block"] or stated["yaml"].strip("\"'")
            return " ".join(words.split()) or None
        match = _HEADING.search(text[:4000])
        return match[1] if match else None


class ReStructuredTextLoader(PlainTextLoader):
    """A reStructuredText file; its title is its first line that is underlined at its whole length."""

    formats = ("restructuredtext",)
    media_type = "text/x-rst"

    def title(self, text: str) -> str | None:
        """Return the first underlined line of the first 4,000 characters."""
        return next((found[1] for found in _UNDERLINED.finditer(text[:4000]) if len(found[1]) > 2), None)


class AsciiDocLoader(PlainTextLoader):
    """An AsciiDoc file; its title is its first heading."""

    formats = ("asciidoc",)
    media_type = "text/asciidoc"

    def title(self, text: str) -> str | None:
        """Return the first heading of the first 4,000 characters."""
        match = _ASCIIDOC_HEADING.search(text[:4000])
        return match[1] if match else None


def read_text(file: SourceFile, encoding: str, limit: int) -> str:
    """Return a file's text; raise UnusableError where it is none, or larger than `limit` bytes."""
    path = file.path
    try:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "neither a file nor a link to one"
            raise UnusableError("not_a_file", f"expected a file, found {what}")
        size = path.stat().st_size
        if size > limit:
            raise UnusableError("too_large", f"{size:,} bytes; max_document_mb allows {limit:,}")
        content = path.read_bytes()
    except OSError as error:
        raise UnusableError("unreadable", f"cannot be read: {error.strerror}") from error
    try:
        text = content.decode("utf-8-sig" if encoding.lower().replace("_", "-") in {"utf-8", "utf8"} else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableError(
            "wrong_encoding",
            f"byte 0x{content[error.start]:02x} at offset {error.start} (line {line}) is not {encoding}; "
            "declare the source's encoding",
        ) from error
    check_text(text)
    return text


def check_text(text: str) -> None:
    """Raise UnusableError for a text that is no text: blank, with NUL characters or halves of a surrogate pair."""
    if not text.strip():
        raise UnusableError("empty", "there is no text" if not text else "the text is only white space")
    check_characters(text)


def check_characters(text: str) -> None:
    """Raise UnusableError for a string that no table can hold: NUL characters or halves of a surrogate pair."""
    if (offset := text.find("\0")) >= 0:
        line = text.count("\n", 0, offset) + 1
        raise UnusableError("nul_bytes", f"a NUL character at offset {offset} (line {line}): not a text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnusableError("wrong_encoding", f"half of a surrogate pair at offset {error.start}") from error
