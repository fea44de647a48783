"""The structure of a text as its markup shows it: where it may be cut and how well, and what each place stands under.

What belongs here: headings, paragraphs, list items, table rows and sentences of Markdown, reStructuredText, AsciiDoc
and plain text. What does not: budgets and chunks (`chunking`), geometry (`geometry.scan`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTION, PARAGRAPH, ITEM, SENTENCE, CLAUSE, WORD = 6, 5, 4, 3, 2, 1

_MARKDOWN_HEADING = re.compile(r"(#{1,6}|={1,6})[ \t]+(\S.*)")
_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\*{2,5}|\.{1,5}|\d{1,3}[.)]|\(\w{1,4}\)|[a-z][.)])[ \t]+\S")
_ROW = re.compile(r"[ \t]*(?:\||\+[-=]{3,})")
_RULE_ROW = re.compile(r"[ \t]*[|+][\s|:+=-]*$")
_NUMBER_CELL = re.compile(r"\|\s*[-+]?\d[\d.,]*\s*(?=\||$)")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_BLOCK = re.compile(r"([-.=+])\1{3,}\s*$")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]{0,3}\s+(?=[\"'“„«(\[]{0,2}[A-ZÀ-ÞŠŽ0-9§])")
_INLINE_ITEM = re.compile(r"\s(?=\(\d{1,3}\)\s+\S)")
_CLAUSE = re.compile(r"[;:,]\s+(?=\S)|\s(?=[–—]\s)|[、，；：。]\s*(?=\S)|<br ?/?>\s*(?=\S)", re.IGNORECASE)
_WORD = re.compile(r"\s+(?=\S)")
_LAST_WORD = re.compile(r"([^\s(\"'„“]{1,12})$")
_ABBREVIATION = re.compile(
    r"abs|approx|art|bzw|ca|calif|cap|cf|co|dept|dr|eds?|e\.g|etc|fig|gen|i\.e|inc|jr|lit|lt|mrs?|ms|mt|nos?|nr|par|pp"
    r"|prof|ref|rev|sec|ser|sr|str?|u\.s|ver|vgl|vol|vs|z\.b|\d{1,2}|."
)
# Lines that belong to the heading below them: targets of reStructuredText, anchors and attributes of AsciiDoc.
_ANCHOR = re.compile(r"\.\. _[^:]+:\s*$|\[.*\]\s*$|:[\w-]+:(?:\s|$)|\(\S*\)=\s*$")
_LONGEST_TITLE, _LONGEST_LEAD_IN, _LONGEST_HEADER = 160, 240, 2000


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading's line start, depth from 1, words, and the words of those it stands under."""

    start: int
    level: int
    title: str
    above: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class Structure:
    """Places to cut, with their strength, and what a place stands under.

    `breaks` maps an offset, where the next piece would begin, to the strongest reason to cut there; `rows` are lines of
    tables, which only their ends may part.
    """

    breaks: dict[int, int] = field(default_factory=dict)
    headings: list[Heading] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    tables: list[tuple[int, int, str]] = field(default_factory=list)
    lists: list[tuple[int, int, str]] = field(default_factory=list)

    def path(self, position: int) -> tuple[str, ...]:
        """Return the headings above `position`; one that begins there is part of the text and not above it."""
        index = bisect_right(self.headings, position, key=lambda heading: heading.start) - 1
        if index < 0:
            return ()
        heading = self.headings[index]
        above = tuple(title for _, title in heading.above)
        return above if heading.start == position else (*above, heading.title)

    def table_header(self, position: int) -> str:
        """Return header and separator of the table that `position` stands inside of, past its first row; else ''."""
        return _inside(self.tables, position)

    def lead_in(self, position: int) -> str:
        """Return the line that introduces the list that `position` continues; else ''."""
        return _inside(self.lists, position)

    def in_row(self, position: int) -> bool:
        """Tell whether a cut at `position` would part a table row."""
        index = bisect_left(self.rows, (position,)) - 1
        return index >= 0 and self.rows[index][0] < position < self.rows[index][1]


def _inside(spans: list[tuple[int, int, str]], position: int) -> str:
    index = bisect_left(spans, (position,)) - 1
    return spans[index][2] if index >= 0 and spans[index][0] < position < spans[index][1] else ""


def read_structure(text: str) -> Structure:
    """Return the structure of a text, in one pass over its lines and one over its sentences."""
    structure = Structure()
    _Lines(structure).read(text)
    breaks = structure.breaks
    for match in _INLINE_ITEM.finditer(text):
        if not structure.in_row(match.end()):
            breaks[match.end()] = max(breaks.get(match.end(), 0), ITEM)
    for match in _SENTENCE.finditer(text):
        if not _abbreviated(text, match.start()) and not structure.in_row(match.end()):
            breaks.setdefault(match.end(), SENTENCE)
    breaks.pop(0, None)
    return structure


def fine_breaks(text: str, start: int, end: int, structure: Structure) -> Iterator[tuple[int, int]]:
    """Yield clauses and words of `text[start:end]`, for a sentence that is over the budget alone."""
    for pattern, strength in ((_CLAUSE, CLAUSE), (_WORD, WORD)):
        for match in pattern.finditer(text, start, end):
            if start < match.end() < end and not structure.in_row(match.end()):
                yield match.end(), strength


def _abbreviated(text: str, dot: int) -> bool:
    """Tell whether the full stop at `dot` ends an abbreviation or an ordinal ("Nr. 5", "24. April", "T. 26 S.")."""
    if text[dot] != ".":
        return False
    match = _LAST_WORD.search(text, max(0, dot - 13), dot)
    if match is None:
        return False
    return bool(_ABBREVIATION.fullmatch(match[1].lower().lstrip("[")))


class _Lines:
    """The pass over lines: what the line is depends on the ones before it."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.levels: dict[str, int] = {}
        self.stack: list[tuple[int, str]] = []
        self.fence: str | None = None
        self.after_blank = True
        self.after_heading = False
        self.previous: tuple[int, str] = (0, "")  # the last line that is not blank
        self.table: list[tuple[int, int, str]] = []
        self.list_start = -1
        self.lead = ""
        self.overline: tuple[int, int, str] = (-1, -1, "")  # start, end and mark of the last line of punctuation
        self.anchors: list[int] = []  # starts of the lines of anchors just read
        self.anchored: tuple[int, list[int]] = (-1, [])  # start of the line below some, and theirs

    def read(self, text: str) -> None:
        position = 0
        for raw in text.splitlines(keepends=True):
            line = raw.rstrip()
            if not line:
                self.after_blank = True
                self._end_table()
            else:
                self._line(position, position + len(raw), line)
                self.after_blank = False
                self.previous = (position, line)
            position += len(raw)
        self._end_table()
        self._end_list(position)

    def _line(self, start: int, end: int, line: str) -> None:
        anchor = self.fence is None and bool(_ANCHOR.match(line))
        if anchor:
            self.anchors.append(start)
        elif self.anchors:
            self.anchored, self.anchors = (start, self.anchors), []
        if self._fenced(line):
            self._cut(start, ITEM if self.fence and not self.after_blank else PARAGRAPH)
            return
        if _ROW.match(line):
            self._cut(start, ITEM if self.table else PARAGRAPH)
            self.table.append((start, end, line))
            self.structure.rows.append((start, end))
            self.after_heading = False
            return
        self._end_table()
        if (heading := _MARKDOWN_HEADING.match(line)) and not (line[0] == "=" and line.rstrip("=") == ""):
            self._heading(start, len(heading[1]), heading[2].strip(" #="))
        elif self._underlines(line):
            title_start = self.previous[0]
            self.structure.breaks.pop(title_start, None)
            overlined = self.overline[1] == title_start and self.overline[2] == line[0]
            self._heading(
                self.overline[0] if overlined else title_start, self._level(line[0]), self.previous[1].strip()
            )
        elif _ITEM.match(line):
            if self.list_start < 0:
                self.list_start = start
                self.lead = self.previous[1].strip() if self.previous[1].endswith(":") else ""
            self._cut(start, ITEM)
            self.after_heading = False
        else:
            if self.after_blank and not line[0].isspace():
                self._end_list(start)
            ruled = bool(_UNDERLINE.match(line))
            if ruled:
                self.overline = (start, end, line[0])
            self._cut(start, PARAGRAPH if self.after_blank else CLAUSE)
            self.after_heading = self.after_heading and (anchor or (ruled and not self.after_blank))

    def _fenced(self, line: str) -> bool:
        """Follow fences of code, in which nothing is a heading; True for the fence's lines and all inside."""
        if self.fence is not None:
            if line.strip().startswith(self.fence) and not line.strip(" \t`~-.=+"):
                self.fence = None
                self.after_heading = False
            return True
        if match := _FENCE.match(line):
            self.fence = match[1][:3]
            return True
        if _BLOCK.match(line) and self.previous[1].startswith("[") and not self.after_blank:
            self.fence = line.strip()
            return True
        return False

    def _underlines(self, line: str) -> bool:
        """Tell whether a line of punctuation underlines the line before it, as long as that is."""
        title = self.previous[1].strip()
        fits = bool(_UNDERLINE.match(line)) and not self.after_blank and 2 < len(title) <= len(line) + 1
        # Under a heading that has its marks already it is a rule.
        own = bool(_UNDERLINE.match(title) or _MARKDOWN_HEADING.match(title))
        return fits and not own and not title.startswith(("[", "|", "+", "."))

    def _level(self, mark: str) -> int:
        return self.levels.setdefault(mark, len(self.levels) + 1)

    def _heading(self, start: int, level: int, title: str) -> None:
        if self.anchored[0] == start:
            for place in (start, *self.anchored[1]):
                self.structure.breaks.pop(place, None)
            start = self.anchored[1][0]
        self._end_list(start)
        while self.stack and self.stack[-1][0] >= level:
            self.stack.pop()
        self.structure.breaks.pop(start, None)
        self._cut(start, SECTION)
        self.structure.headings.append(Heading(start, level, title[:_LONGEST_TITLE], tuple(self.stack)))
        self.stack.append((level, title[:_LONGEST_TITLE]))
        self.after_heading = True

    def _cut(self, start: int, strength: int) -> None:
        """Note a place to cut; never between a heading and what follows it."""
        if not self.after_heading:
            self.structure.breaks[start] = strength

    def _end_list(self, position: int) -> None:
        if self.list_start >= 0 and self.lead:
            self.structure.lists.append((self.list_start, position, self.lead[-_LONGEST_LEAD_IN:]))
        self.list_start = -1

    def _end_table(self) -> None:
        """Note header and separator for the table's rows; below rows of words, those words too."""
        rows, self.table = self.table, []
        if len(rows) < 2:
            return
        lines = [line for _, _, line in rows]
        ruled = next((index for index, line in enumerate(lines[:6]) if index and _RULE_ROW.match(line)), None)
        header = [squeeze(line) for line in lines[: ruled + 1]] if ruled is not None else [squeeze(lines[0])]
        if not header[0].strip("|+ "):
            header = []  # Markdown's empty header row
        body = (ruled if ruled is not None else 0) + 1
        begin, labels, numeric = rows[0][0], list[str](), False
        for index in range(body, len(rows)):
            if _RULE_ROW.match(lines[index]):
                continue
            if _NUMBER_CELL.search(lines[index]):
                numeric = True
            elif numeric:
                self._table_span(begin, rows[index][0], header, labels)
                begin, labels, numeric = rows[index][0], [squeeze(lines[index])], False
            else:
                labels.append(squeeze(lines[index]))
        self._table_span(begin, rows[-1][1], header, labels if numeric else [])

    def _table_span(self, start: int, end: int, header: list[str], labels: list[str]) -> None:
        words = "\n".join([*header, *(label for label in labels[-4:] if label.strip("| "))])
        self.structure.tables.append((start, end, words[:_LONGEST_HEADER]))


_LONG = re.compile(r"(?P<rule>[^\w\s|]|_)(?P=rule){3,}|\|(?:[^\S\n]*\|){2,}|[^\S\n]{2,}")


def squeeze(line: str) -> str:
    """Shorten rules, empty cells and blanks, which cost tokens and say nothing."""
    return _LONG.sub(shorter, line).strip()


def shorter(match: re.Match[str]) -> str:
    """Return what stands for a run of marks in shortened text."""
    if match["rule"]:
        return match["rule"] * 3
    return "||" if match[0][0] == "|" else " "


LONG_RUN = _LONG
