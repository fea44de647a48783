"""A question, and how the place in it becomes a region before any index is touched.

What belongs here: what may be asked, its bounds, the words that name a place. What does not: what a name means
(`places`), the search (`retriever`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from georag_assets.errors import QueryError
from georag_assets.geometry.region import Region
from georag_assets.retrieval.settings import RADIUS_M

MAX_TEXT = 2_000
MAX_RADIUS_M = 20_100_000.0

# A name as English writes it: capitalised words, joined by small ones ("Isle of Wight", "Rio de Janeiro"), with
# commas ("Sonoma County, California") and brackets.
_WORD = r"(?:[dl]['’])?[^\W\d_a-zß-öø-ÿ][\w'’.\-]*"
_JOIN = r"(?:\s+|\s*,\s*|\s+(?:of|the|and|de|del|der|des|di|da|do|du|la|le|las|los|am|an|im|upon|on)\s+)"
_PLACE = re.compile(
    rf"(?:^|\s)(?P<preposition>(?i:in|near|around|within|at|inside|across|throughout))\s+(?:the\s+)?"
    rf"(?P<name>{_WORD}(?:{_JOIN}{_WORD})*(?:\s*\([^()]*\))?)",
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the index.

    Attributes
    ----------
    text
        The question in words.
    place, near, bbox, shape_region
        At most one: a name to resolve, a point (lon, lat), a box (west, south, east, north), a region already made.
        None of them: with `place_from_words` a place is looked for in the words, else the search is by text alone.
    radius_m
        Around the point (5 km by default) or around the named shape (none by default).
    period
        (start, exclusive end), seconds since 1970 UTC.
    equals
        Keyword fields that must match.
    k
        How many candidates to return.
    """

    text: str
    place: str | None = None
    near: tuple[float, float] | None = None
    bbox: tuple[float, float, float, float] | None = None
    shape_region: Region | None = None
    radius_m: float | None = None
    period: tuple[float, float] | None = None
    equals: Mapping[str, str] = field(default_factory=dict)
    k: int = 10
    place_from_words: bool = True

    def check(self, depth: int) -> None:
        """Raise `QueryError` where the question is outside its bounds; the error never echoes the text."""
        if not self.text.strip():
            raise QueryError("the question is empty", expected="some words")
        if len(self.text) > MAX_TEXT:
            raise QueryError(
                "the question is too long", expected=f"<= {MAX_TEXT} characters", found=str(len(self.text))
            )
        for text in (self.text, self.place or "", *self.equals, *self.equals.values()):
            if "\0" in text:
                raise QueryError("the question holds a NUL character")
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise QueryError("the question is not valid Unicode", expected="UTF-8")
        if not 1 <= self.k <= depth:
            raise QueryError("k is out of bounds", expected=f"1 to {depth}", found=str(self.k))
        given = [self.place, self.near, self.bbox, self.shape_region]
        if sum(place is not None for place in given) > 1:
            raise QueryError("more than one place was given", expected="one of place, near, bbox")
        if self.radius_m is not None:
            if self.bbox is not None:
                raise QueryError("a radius needs a point or a place, not a box")
            if not 0 <= self.radius_m <= MAX_RADIUS_M:
                raise QueryError("the radius is out of bounds", expected=f"0 to {MAX_RADIUS_M:g} m")
        if self.period is not None and not self.period[0] < self.period[1]:
            raise QueryError("the period ends before it starts")

    @property
    def given_region(self) -> Region | None:
        """The region that was given as numbers, or None."""
        if self.shape_region is not None:
            return self.shape_region
        if self.bbox is not None:
            return Region.from_bbox(*self.bbox)
        if self.near is not None:
            return Region.from_point(*self.near, radius_m=RADIUS_M if self.radius_m is None else self.radius_m)
        return None


@dataclass(frozen=True, slots=True)
class PlacePhrase:
    """Where words name a place: `text[start:end]` is the phrase with its preposition, `name` the name in it."""

    name: str
    start: int
    end: int
    preposition: str


def place_phrase(text: str) -> PlacePhrase | None:
    """Return the last phrase that names a place by grammar ("... in Napa Valley"), or None."""
    found = list(_PLACE.finditer(text))
    if not found:
        return None
    match = found[-1]
    return PlacePhrase(match["name"].rstrip(" ,."), match.start("preposition"), match.end(), match["preposition"])


def without_place(text: str, name: str | None = None) -> str | None:
    """Return the question without the words that say where; None where it has none, or nothing else.

    Parameters
    ----------
    name
        The place's name where it was given; else the phrase is found by grammar.
    """
    phrase = place_phrase(text)
    if name:
        stated = re.search(
            rf"(?i)(?:\b(?:in|near|around|within|at|of|for|from)\s+)?(?:\bthe\s+)?\b{re.escape(name)}(?!\w)", text
        )
        span = (stated.start(), stated.end()) if stated else None
    else:
        span = (phrase.start, phrase.end) if phrase else None
    if span is None:
        return None
    left = re.sub(r"\s+", " ", f"{text[: span[0]]} {text[span[1] :]}").strip(" ,.;:?!")
    return left if re.search(r"\w", left) else None


RegionSource = Literal["bbox", "near", "shape", "place", "words", "none"]
