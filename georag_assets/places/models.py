"""Records that leave the places room."""

from __future__ import annotations

from dataclasses import dataclass

from shapely.geometry.base import BaseGeometry


@dataclass(frozen=True, slots=True)
class Feature:
    """A named shape of some gazetteer.

    `kind` is `feature` (a corpus's own), `country`, `division`, `lake`, `sea` or `city`; `geometry` is EPSG:4326,
    normalised, a point for a city; `within` says where it is in words ("US CA").
    """

    name: str
    source: str
    kind: str
    geometry: BaseGeometry
    credit: str
    population: int = 0
    country: str = ""
    admin1: str = ""

    @property
    def is_area(self) -> bool:
        """True for what has an outline of its own."""
        return self.geometry.geom_type not in ("Point", "MultiPoint")

    def reading(self) -> str:
        """Return one line that tells this reading from its namesakes."""
        where = " ".join(part for part in (self.country, self.admin1) if part)
        people = f"{self.population:,} people" if self.population else ""
        at = self.geometry.representative_point()
        facts = ", ".join(part for part in (self.kind, where, people, f"around {at.x:.2f},{at.y:.2f}") if part)
        return f"{self.name} ({facts}; {self.source})"


@dataclass(frozen=True, slots=True)
class ResolvedPlace:
    """A name resolved to one shape.

    Attributes
    ----------
    name
        As the gazetteer spells it.
    source, credit
        `ava` (a corpus), `natural_earth` or `geonames`, and whom to credit.
    geometry
        EPSG:4326, normalised; a point for a city.
    kind
        As in `Feature`.
    rule
        Why this reading and no other.
    readings
        The other readings there were.
    """

    name: str
    source: str
    credit: str
    geometry: BaseGeometry
    kind: str
    rule: str
    readings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedPlace:
    """A place name found in a question: `question[start:end] == text`."""

    text: str
    start: int
    end: int
