"""HTML: one document per file, as the Markdown that a reader would see.

What belongs here: markup to text with its headings, lists and tables kept. What does not: structure of that text
(`corpus.structure`). Offsets of chunks are those of this text, not of the file.
"""

from __future__ import annotations

import re

from bs4 import BeautifulSoup
from markdownify import ATX, MarkdownConverter

from georag_assets.corpus.sources.loader import SourceFile, UnusableError
from georag_assets.corpus.sources.text import MarkdownLoader, check_text, read_text

_UNSEEN = ("script", "style", "noscript", "template", "svg", "iframe", "object", "head")
_INLINE = ["a", "img", "b", "strong", "i", "em", "del", "s", "code", "kbd", "samp", "sub", "sup", "q", "mark", "u"]
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+\n")


class HtmlLoader(MarkdownLoader):
    """An HTML file; its title is its `title` element, else its first heading."""

    formats = ("html",)

    def read(self, file: SourceFile, encoding: str, limit: int) -> tuple[str, str | None]:
        """Return the text that a reader sees, as Markdown, and the title."""
        soup = BeautifulSoup(read_text(file, encoding, limit), "html.parser")
        title = " ".join(soup.title.get_text().split()) if soup.title else None
        for unseen in soup.find_all(_UNSEEN):
            unseen.decompose()
        for words in soup.find_all(string=re.compile(r"\|")):
            if words.find_parent(("td", "th")) is not None:  # a bar would begin another cell
                words.replace_with(words.replace("|", r"\|"))
        try:
            # An escape or an emphasis inside a coordinate would part it.
            converter = MarkdownConverter(
                heading_style=ATX,
                escape_asterisks=False,
                escape_underscores=False,
                escape_misc=False,
                strip=_INLINE,
            )
            text = _BLANK_LINES.sub("\n\n", converter.convert_soup(soup)).strip() + "\n"
        except RecursionError:
            raise UnusableError("too_deep", "the elements are nested too deep to be read") from None
        check_text(text)
        return text, title or self.title(text)
