"""Names of coordinate reference systems as people write them, from PROJ's own database.

What belongs here: an index of PROJ's names and aliases, and finding them in prose. What does not: what a name found is
worth (`resolver`), and codes that a text states outright (`mentions`).
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_WORD = re.compile(r"[^\W_]+")
# Words that names and prose put in or leave out at will.
_IDLE = frozenset(
    {"zone", "zones", "datum", "of", "the", "coordinate", "coordinates", "system", "projection", "projected", "crs"}
    | {"gcs", "and", "in", "on", "is"}
)
_CUES = frozenset({"datum", "crs", "srs", "geodetic", "epsg", "koordinatensystem", "bezugssystem"})
_PHRASES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("north", "american", "datum", "of", "1983"), "nad83"),
    (("north", "american", "datum", "1983"), "nad83"),
    (("north", "american", "1983"), "nad83"),
    (("north", "american", "datum", "of", "1927"), "nad27"),
    (("north", "american", "datum", "1927"), "nad27"),
    (("north", "american", "1927"), "nad27"),
    (("world", "geodetic", "system", "of", "1984"), "wgs84"),
    (("world", "geodetic", "system", "1984"), "wgs84"),
    (("universal", "transverse", "mercator"), "utm"),
    (("us", "survey", "feet"), "ftus"),
    (("us", "survey", "foot"), "ftus"),
    (("us", "feet"), "ftus"),
    (("us", "foot"), "ftus"),
    (("u", "s", "survey", "feet"), "ftus"),
    (("u", "s", "feet"), "ftus"),
)
_PHRASES_BY_FIRST: dict[str, list[tuple[tuple[str, ...], str]]] = {}
for _phrase, _short in _PHRASES:
    _PHRASES_BY_FIRST.setdefault(_phrase[0], []).append((_phrase, _short))
_YEARED = re.compile(r"(nad|wgs|etrs)19(\d\d)")
_ZONE = re.compile(r"\d{1,2}[ns]")
# A text without any of these names no frame worth the search.
WORTH_READING = re.compile(
    r"epsg|srid|\bcrs\b|\bwgs|\bnad[ _]?\d|\bdatum|\butm\b|etrs|\bgcs[ _]|state ?plane|projection"
    r"|coordinate (?:ref|sys)|geodetic|gau(?:ss|ß)|koordinaten|transverse mercator|\bgrid\b.{0,40}\b(?:19|20)\d\d\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text in the form in which names are compared, and where it stands."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NameMatch:
    """A name found in prose: the codes that bear it, and whether it stood there word for word."""

    start: int
    end: int
    codes: tuple[str, ...]
    verbatim: bool
    guessed_hemisphere: bool = False


@dataclass(slots=True)
class _Name:
    words: tuple[str, ...]
    loose: bool
    official: bool
    guessed: bool = False
    codes: list[str] = field(default_factory=list)


def words_of(text: str) -> list[Word]:
    """Split into words as names are compared: folded, `WGS 84` one word, `32 North` one word, idle words left out."""
    raw = [Word(_fold(match.group()), match.start(), match.end()) for match in _WORD.finditer(text)]
    joined: list[Word] = []
    at = 0
    while at < len(raw):
        for phrase, short in _PHRASES_BY_FIRST.get(raw[at].text, ()):
            window = raw[at : at + len(phrase)]
            if tuple(word.text for word in window) == phrase:
                joined.append(Word(short, window[0].start, window[-1].end))
                at += len(phrase)
                break
        else:
            joined.append(raw[at])
            at += 1
    words: list[Word] = []
    for word in joined:
        last = words[-1] if words else None
        near = last is not None and word.start - last.end <= 1
        if last and near and last.text.isdigit() and len(last.text) <= 2 and word.text in ("n", "s", "north", "south"):
            words[-1] = Word(last.text.lstrip("0") + word.text[0], last.start, word.end)
        elif (
            last
            and near
            and word.text.isdigit()
            and len(word.text) in (2, 4)
            and last.text.isalpha()
            and len(last.text) <= 5
            and last.text not in ("utm", "zone", "epsg", "fips", "srid", "code")
        ):
            words[-1] = Word(_YEARED.sub(r"\1\2", last.text + word.text), last.start, word.end)
        else:
            words.append(Word(_YEARED.sub(r"\1\2", word.text), word.start, word.end))
    return [word for word in words if word.text not in _IDLE]


def _fold(word: str) -> str:
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFKD", word.replace("ß", "ss"))
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).lower()


class NameIndex:
    """Names of two-dimensional geographic and of projected frames, ready to be found in prose."""

    def __init__(self) -> None:
        names: dict[tuple[str, ...], _Name] = {}
        for code, title, official in _database_names():
            for words, loose in _spellings(title):
                # An alias never makes another frame's own name ambiguous; names come before aliases.
                if official or words not in names or not names[words].official:
                    names.setdefault(words, _Name(words, loose, official=official)).codes.append(code)
        for name in list(names.values()):
            bare = tuple(word[:-1] if _ZONE.fullmatch(word) else word for word in name.words)
            if "utm" not in bare or bare == name.words or bare in names:
                continue
            south = tuple(word[:-1] + "s" if _ZONE.fullmatch(word) else word for word in name.words)
            if south not in names:  # A datum of one hemisphere only: NAD83, ETRS89.
                names[bare] = _Name(bare, name.loose, name.official, guessed=True, codes=list(name.codes))
        rarity: dict[str, int] = defaultdict(int)
        for name in names.values():
            for word in set(name.words):
                rarity[word] += 1
        self._by_rarest: dict[str, list[_Name]] = defaultdict(list)
        for name in names.values():
            self._by_rarest[min(name.words, key=lambda word: (rarity[word], word))].append(name)

    def find(self, text: str) -> list[NameMatch]:
        """Return the names in a text, the longest where they overlap, in order."""
        words = words_of(text)
        places: dict[str, list[int]] = defaultdict(list)
        for at, word in enumerate(words):
            places[word.text].append(at)
        found: list[tuple[int, int, _Name, bool]] = []
        for present in places:
            for name in self._by_rarest.get(present, ()):
                if all(part in places for part in name.words):
                    found += [(*span, name, verbatim) for span, verbatim in _spans(name, places)]
        cues = _cue_starts(text)
        found = [
            (first, last, name, verbatim)
            for first, last, name, verbatim in found
            if any(any(c.isdigit() for c in part) for part in name.words)
            or any(words[first].start - 16 <= cue <= words[last].end + 4 for cue in cues)
        ]
        found.sort(key=lambda hit: (-len(hit[2].words), hit[2].guessed, not hit[3], hit[1] - hit[0], hit[0]))
        kept: list[tuple[int, int, _Name, bool]] = []
        for hit in found:
            if all(hit[1] < other[0] or hit[0] > other[1] for other in kept):
                kept.append(hit)
        return sorted(
            (
                NameMatch(words[first].start, words[last].end, tuple(dict.fromkeys(name.codes)), verbatim, name.guessed)
                for first, last, name, verbatim in kept
            ),
            key=lambda match: match.start,
        )


def _cue_starts(text: str) -> list[int]:
    return [match.start() for match in _WORD.finditer(text) if _fold(match.group()) in _CUES]


@cache
def name_index() -> NameIndex:
    """Return the index, made once in a process, and only when a text is worth reading."""
    return NameIndex()


def _spans(name: _Name, places: dict[str, list[int]]) -> Iterator[tuple[tuple[int, int], bool]]:
    """Yield where all words of a name stand together: word for word, or near each other where the name is loose."""
    size = len(name.words)
    starts = [at for at in places[name.words[0]] if all(at + i in places[word] for i, word in enumerate(name.words))]
    for at in starts:
        yield (at, at + size - 1), True
    if starts or not name.loose:
        return
    anchor = min(name.words, key=lambda word: len(places[word]))
    for at in places[anchor]:
        spots = [min((abs(spot - at), spot) for spot in places[word])[1] for word in name.words]
        if len(set(spots)) == size and max(spots) - min(spots) < size + 6:
            yield (min(spots), max(spots)), False


def _spellings(name: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    words = tuple(word.text for word in words_of(name))
    if not words or all(word.isdigit() for word in words) or (len(words) == 1 and len(words[0]) < 3):
        return
    parts = name.split(" / ")
    loose = (len(parts) == 2 or "StatePlane" in name) and len(set(words)) == len(words) >= 2
    yield words, loose
    if len(parts) == 2:
        turned = tuple(word.text for word in words_of(f"{parts[1]} {parts[0]}"))
        if turned != words:
            yield turned, False


def _database_names() -> Iterator[tuple[str, str, bool]]:
    from pyproj import datadir
    from pyproj.database import query_crs_info
    from pyproj.enums import PJType

    known: set[str] = set()
    for info in query_crs_info("EPSG", [PJType.GEOGRAPHIC_2D_CRS, PJType.PROJECTED_CRS]):
        known.add(info.code)
        yield f"EPSG:{info.code}", info.name, True
    # Aliases (ESRI's names among them) are in PROJ's database and in no function of pyproj.
    database = Path(datadir.get_data_dir().split(";")[0]) / "proj.db"
    if not database.is_file():
        return
    with sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True) as connection:
        rows = connection.execute(
            "SELECT code, alt_name FROM alias_name WHERE auth_name = 'EPSG' "
            "AND table_name IN ('geodetic_crs', 'projected_crs')"
        )
        for code, alias in rows:
            if str(code) in known:
                yield f"EPSG:{code}", str(alias), False
