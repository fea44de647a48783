"""From a place name to one shape, or to a refusal that lists the readings.

What belongs here: choosing among namesakes by stated rules, and finding names in a question. What does not: the
gazetteers (`gazetteer`) and what is searched around a place (`retrieval`).

The rules, in order: a corpus's own feature; else the only reading; else the area that holds the other readings; else a
country, or a large division over a city of under 250,000 people; else the city with ten times the people of any
namesake. Whatever none of them decides is a `PlaceError`, because an answer about the wrong place is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from georag_assets.errors import PlaceError
from georag_assets.geometry.distance import geodesic_m
from georag_assets.home import Home
from georag_assets.places.gazetteer import Gazetteer, key_of, of_corpus, world
from georag_assets.places.models import Feature, NamedPlace, ResolvedPlace

DOMINANCE = 10
_CITY_BESIDE_A_DIVISION = 250_000
_SAME_PLACE_M = 50_000.0
_SHOWN = 10
_MOST_WORDS = 7
_KNOWN_WITHOUT_CAPITALS = ("feature", "country", "division", "sea")
_NAMED_FROM = 15_000
_FAMOUS_FROM = 500_000
_SUFFIX = re.compile(r"\s+(?:AVA|viticultural area|american viticultural area|region|area)$", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*\.?")
_BEFORE_A_PLACE = frozenset(
    re.findall(r"\w+", "in near of at around from within across along inside outside to between through")
)
_INSIDE_A_NAME = frozenset(
    re.findall(r"\w+", "of the and de la le del du da do dos das el al upon on am an der den in sur")
)
_NO_PLACE = frozenset(
    re.findall(
        r"\w+",
        "the a an what which where who when how why is are was were do does did can could show list find give tell map "
        "maps "
        "data of i and or not all any january february march april may june july august september october november "
        "december monday tuesday wednesday thursday friday saturday sunday north south east west northern southern "
        "eastern western central university street road river valley lake mount mountain island county state city",
    )
)


class PlaceResolver:
    """Resolves names; cheap to make, opens its gazetteers when first asked.

    Parameters
    ----------
    home
        Where the gazetteers are kept.
    corpora
        Corpora whose own features come first.
    """

    def __init__(self, home: Home, corpora: Sequence[str] = ()) -> None:
        self._home = home
        self._names = tuple(corpora)

    @cached_property
    def _corpora(self) -> tuple[Gazetteer, ...]:
        return tuple(of_corpus(self._home, corpus) for corpus in self._names)

    @cached_property
    def _world(self) -> Gazetteer:
        return world(self._home)

    def resolve(self, name: str) -> ResolvedPlace:
        """Return the one place that a name means.

        Parameters
        ----------
        name
            A name, or a name with where it is after commas ("Springfield, Illinois, US").

        Raises
        ------
        PlaceError
            Nobody knows the name, or it has readings far apart and no rule decides; `readings` lists them.
        """
        name = " ".join(name.split())
        if not key_of(name):
            raise PlaceError("A place needs a name")
        own = self._own(name)
        if own:
            return _chosen(own, "the corpus's own feature") if len(own) == 1 else self._decide(name, own)
        head, *qualifiers = [part.strip() for part in name.split(",") if part.strip()]
        found = self._world.find(name) or self._world.find(head)
        if qualifiers and not self._world.find(name):
            found = [feature for feature in found if all(self._lies_in(feature, where) for where in qualifiers)]
            if not found:
                found = self._own(head)
        if not found:
            raise PlaceError(
                "A place is in no gazetteer",
                expected="a feature of the corpus, or a name in Natural Earth or GeoNames",
                do="give --near or --bbox instead",
            )
        return self._decide(name, found)

    def find_in(self, question: str) -> list[NamedPlace]:
        """Return the place names in a question, the longest ones first where they overlap, in order of appearance.

        Names begin with a capital, except after "in", "near" and their like; a question's first word counts only where
        it is famous.
        """
        words = list(_WORD.finditer(question))
        found: list[NamedPlace] = []
        at = 0
        while at < len(words):
            for size in range(min(_MOST_WORDS, len(words) - at), 0, -1):
                first, last = words[at], words[at + size - 1]
                text = question[first.start() : last.end()].rstrip(".")
                if self._is_named(text, [word.group() for word in words[at : at + size]], words, at):
                    found.append(NamedPlace(text, first.start(), first.start() + len(text)))
                    at += size
                    break
            else:
                at += 1
        return found

    def _own(self, name: str) -> list[Feature]:
        for spelling in dict.fromkeys((name, _SUFFIX.sub("", name))):
            if found := [feature for gazetteer in self._corpora for feature in gazetteer.find(spelling)]:
                return found
        return []

    def _decide(self, name: str, found: Sequence[Feature]) -> ResolvedPlace:
        readings = _distinct(found)
        if len(readings) == 1:
            return _chosen(readings, "the only reading")
        for candidate in readings:
            others = [other for other in readings if other is not candidate]
            if candidate.is_area and all(_near(candidate, other) for other in others):
                return _chosen([candidate, *others], "the area that holds the other readings")
        for candidate in readings:
            others = [other for other in readings if other is not candidate]
            if candidate.kind == "country" and all(not other.is_area for other in others):
                return _chosen([candidate, *others], "a country before its namesake cities")
            small = all(not other.is_area and other.population < _CITY_BESIDE_A_DIVISION for other in others)
            if candidate.kind == "division" and small:
                return _chosen([candidate, *others], "a division before its small namesake cities")
        first, *rest = sorted(readings, key=lambda feature: -feature.population)
        second = max(rest, key=lambda feature: feature.population)
        if all(not feature.is_area for feature in readings) and first.population >= DOMINANCE * max(
            1, second.population
        ):
            return _chosen([first, *rest], f"at least {DOMINANCE} times the people of any namesake")
        raise PlaceError(
            f"A place name has {len(readings)} readings far apart",
            readings=tuple(feature.reading() for feature in readings[:_SHOWN]),
            found="; ".join(feature.reading() for feature in readings[:_SHOWN]),
            do='say where it is ("Springfield, Illinois"), or give --near or --bbox',
        )

    def _lies_in(self, feature: Feature, where: str) -> bool:
        """Return whether a reading lies in a country or division, by its codes or by geometry."""
        key = key_of(where)
        codes = {key_of(feature.country), key_of(feature.admin1)}
        if key in codes or key in {key_of(f"{feature.country} {feature.admin1}")}:
            return True
        if key in _COUNTRY_WORDS.get(feature.country, ()):
            return True
        areas = [area for area in self._world.find(where) if area.kind in ("country", "division")]
        if any(area.country == feature.country for area in areas if area.kind == "country"):
            return True
        return any(
            _near(area, feature) for area in areas if area.kind == "division" and area.country == feature.country
        )

    def _is_named(self, text: str, parts: Sequence[str], words: Sequence[re.Match[str]], at: int) -> bool:
        key = key_of(text)
        if not key or key in _NO_PLACE or key.isdigit():
            return False
        after = at > 0 and words[at - 1].group().casefold() in _BEFORE_A_PLACE
        capital = parts[0][0].isupper() and all(
            part[0].isupper() or part[0].isdigit() or part.casefold() in _INSIDE_A_NAME for part in parts
        )
        ends = parts[-1].casefold() not in _INSIDE_A_NAME and parts[0].casefold() not in _INSIDE_A_NAME - {
            "the",
            "la",
            "el",
        }
        if not ends or not (capital or after):
            return False
        own = [kind for gazetteer in self._corpora for kind in gazetteer.kinds(key)]
        kinds = own or self._world.kinds(key)
        if not capital:
            return any(kind in _KNOWN_WITHOUT_CAPITALS for kind, _ in kinds)
        if at == 0 and len(parts) == 1:
            return any(kind in ("feature", "country", "division") or people >= _FAMOUS_FROM for kind, people in kinds)
        # Of several words a small town's name is seldom anything else; "St. Helena" must not become "Helena".
        least = _NAMED_FROM if len(parts) == 1 else 0
        return any(kind != "city" or people >= least for kind, people in kinds)


_COUNTRY_WORDS: dict[str, tuple[str, ...]] = {
    "US": ("usa", "u s a", "us", "u s", "united states", "united states of america", "america"),
    "GB": ("uk", "u k", "united kingdom", "great britain", "britain", "england", "scotland", "wales"),
}


def _chosen(features: Sequence[Feature], rule: str) -> ResolvedPlace:
    first, *others = features
    return ResolvedPlace(
        first.name,
        first.source,
        first.credit,
        first.geometry,
        first.kind,
        rule,
        tuple(other.reading() for other in others[:_SHOWN]),
    )


_ORDER = ("feature", "country", "division", "lake", "sea", "city")


def _distinct(found: Iterable[Feature]) -> list[Feature]:
    """Return features without the doubles of a city that two gazetteers hold, areas first, then by people."""
    ordered = sorted(found, key=lambda f: (_ORDER.index(f.kind), f.source == "natural_earth", -f.population))
    kept: list[Feature] = []
    for feature in ordered:
        if not any(not feature.is_area and not other.is_area and _near(feature, other) for other in kept):
            kept.append(feature)
    return kept


def _near(a: Feature, b: Feature) -> bool:
    return geodesic_m(a.geometry, b.geometry) <= _SAME_PLACE_M
