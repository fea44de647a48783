"""Mentions of reference frames in a text: codes that it states, names that it uses, and what it says of them.

What belongs here: finding mentions and their role (of the data, of a display, of a source it was converted from). What
does not: the score (`resolver`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from georag_assets.frames.names import WORTH_READING, name_index
from georag_assets.frames.project import frame

Role = Literal["data", "display", "origin"]

_CODE = re.compile(
    r"urn:ogc:def:crs:EPSG:[\d.]*:(?P<urn>\d{4,6})\b"
    r"|opengis\.net/(?:def/crs/EPSG/[\d.]+/|gml/srs/epsg\.xml#)(?P<url>\d{4,6})\b"
    r"|\b(?P<crs84>(?:OGC:|OGC:1\.3:|OGC/1\.3/)?CRS84)\b"
    r"|\bEPSG(?:[\s_-]*(?:code|projection|number|ID))*[\s_-]*(?:is|was)?\s*[:=#]{0,2}\s*(?P<epsg>\d{4,6})\b"
    r"|\bSRID\s*[:=]?\s*(?P<srid>\d{4,6})\b",
    re.IGNORECASE,
)
# The number after an operation's or a datum's urn is no frame's.
_NOT_A_FRAME = re.compile(r"(?:coordinateOperation|datum|ellipsoid|method|area):$", re.IGNORECASE)
_DISPLAY = re.compile(
    r"(?:for|in)\s+(?:the\s+)?(?:web|online|on-screen|screen)?\s*(?:display|viewing|preview|visuali[sz]ation|web\s+mapping)"
    r"|\b(?:is|are|was|were)\s+(?:presented|displayed|shown|previewed)\s+in\b|\bweb\s+(?:display|map\s+tiles)",
    re.IGNORECASE,
)
_ORIGIN = re.compile(r"\bfrom\s+(?:the\s+|GCS[ _])?$", re.IGNORECASE)
# Not after an initial ("U.S. survey feet").
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[^\sa-z])|(?<=\.)(?=(?:These|This|The|It)\s)|\n\s*\n")


_METHOD = re.compile(r"\b(?:albers|lambert|utm|mercator|polyconic|stereographic|state\s?plane|azimuthal)\b", re.I)


@dataclass(frozen=True, slots=True)
class Mention:
    """A frame named in a text; several `codes` where the name does not tell them apart."""

    source: Literal["stated_code", "name_in_prose"]
    text: str
    start: int
    end: int
    codes: tuple[str, ...]
    weight: float
    role: Role = "data"


@lru_cache(maxsize=16)
def find_mentions(text: str) -> tuple[Mention, ...]:
    """Return the mentions in a text in order; a name beside its own code is two mentions that agree."""
    if not WORTH_READING.search(text):
        return ()
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return tuple(
        replace(mention, start=mention.start + start, end=mention.end + start)
        for start, end in pairwise(ends)
        for mention in _in_sentence(text[start:end])
    )


@lru_cache(maxsize=65_536)
def _in_sentence(sentence: str) -> tuple[Mention, ...]:
    """Return a sentence's mentions; cached, because catalogues say the same sentence thousands of times."""
    if not WORTH_READING.search(sentence):
        return ()
    mentions = []
    for match in _CODE.finditer(sentence):
        if _NOT_A_FRAME.search(sentence[max(0, match.start() - 24) : match.start()]):
            continue
        group = match.lastgroup or ""
        code = 4326 if group == "crs84" else int(match[group])
        role = _role(sentence, match.start())
        mentions.append(
            Mention("stated_code", match.group(), match.start(), match.end(), (f"EPSG:{code}",), 0.85, role)
        )
    names = name_index().find(sentence)
    # "Projection: Teale Albers, NAD83": the datum alone is not the frame where a projection stands there unread.
    partial = bool(_METHOD.search(sentence)) and not any(_is_projected(name.codes[0]) for name in names)
    for name in names:
        weight = 0.6 if name.guessed_hemisphere else 0.75 if name.verbatim else 0.7
        weight = round(weight * (0.6 if partial else 1), 3)
        span = sentence[name.start : name.end]
        role = _role(sentence, name.start)
        mentions.append(Mention("name_in_prose", span, name.start, name.end, name.codes, weight, role))
    return tuple(sorted(mentions, key=lambda mention: (mention.start, mention.end)))


def _is_projected(code: str) -> bool:
    return bool(frame(code).is_projected)


def _role(sentence: str, start: int) -> Role:
    if _DISPLAY.search(sentence):
        return "display"
    return "origin" if _ORIGIN.search(sentence[max(0, start - 30) : start]) else "data"
