"""GeoJSON as records: each feature a document, streamed.

What belongs here: features to records, and the frame that the file states. What does not: records to documents
(`records`); GeoJSON as running text is a source with `format: text`.

By RFC 7946 coordinates are longitude and latitude in WGS 84; files of 2008 may name another frame in a `crs` member,
which is read where it stands, and refused where it cannot be.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import ijson
import pyproj

from georag_assets.corpus.declaration import CorpusDeclaration, Source
from georag_assets.corpus.models import Document
from georag_assets.corpus.sources.json_lines import open_bytes
from georag_assets.corpus.sources.loader import Rejection, SourceFile
from georag_assets.corpus.sources.records import RecordReader
from georag_assets.corpus.sources.shapes import epsg_of
from georag_assets.errors import SourceError

_GEOMETRY = "geometry"
_DEEPEST = 200
_KINDS = ("FeatureCollection", "Feature")


class GeoJsonLoader:
    """A feature collection, or one feature; a record is a feature's `properties` with its `geometry` and `id` beside.

    A property named `id` or `geometry` stays what it is.
    """

    formats = ("geojson",)

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield a document per feature."""
        columns = source.columns
        assert columns is not None
        kind, crs = _head(file)
        if columns.geometry is None and columns.bbox is None:
            columns = columns.model_copy(update={"geometry": _GEOMETRY})
        epsg = None if crs is None else _code(crs, file)
        evidence = f"crs member of {file.name}: {crs}"
        reader = RecordReader(file, columns, declaration, "application/geo+json", epsg, evidence)
        for number, feature in enumerate(_items(file, "features.item" if kind == _KINDS[0] else ""), start=1):
            if not isinstance(feature, Mapping) or feature.get("type") != "Feature":
                yield reader.reject(number, "not_geojson", f"expected a Feature, found {str(feature)[:80]}")
                continue
            yield reader.read(_record(feature), number)
        reader.finish()


def _record(feature: Mapping[str, Any]) -> dict[str, object]:
    own = {name: feature.get(name) for name in ("id", _GEOMETRY)}
    properties = feature.get("properties")
    return own | properties if isinstance(properties, dict) else own


def _head(file: SourceFile) -> tuple[str, str | None]:
    """Return the file's kind and the name in its `crs` member, wherever they stand in it."""
    kind, crs, unnamed, listed = None, None, False, False
    with _reading(file) as stream:
        try:
            for prefix, event, value in ijson.parse(_shallow(ijson.basic_parse(stream, use_float=True), file)):
                if prefix == "type":
                    kind = value
                elif prefix == "crs" and event == "start_map":
                    unnamed = True
                elif prefix in ("crs.properties.name", "crs.properties.code"):
                    crs = str(value)
                elif prefix == "features" and event == "start_array":
                    listed = True
        except (ijson.JSONError, ValueError, OSError, EOFError) as error:
            _damaged(file, error)
    if kind not in _KINDS:
        raise SourceError(
            "the file holds no features",
            where=str(file.path),
            expected=" or ".join(_KINDS),
            found=str(kind),
            do="declare `format: text` where its text is meant",
        )
    if kind == _KINDS[0] and not listed:
        raise SourceError(
            "the FeatureCollection has no list of features",
            where=str(file.path),
            expected="`features`, a list, which may be empty",
            do="correct the file, or write it again",
        )
    return kind, crs or ("a crs without a name" if unnamed else None)


def _shallow(events: Iterable[tuple[str, Any]], file: SourceFile) -> Iterator[tuple[str, Any]]:
    """Pass events on, and raise where they nest deeper than any feature does: ijson's memory grows with the square."""
    depth = 0
    for event, value in events:
        if event in ("start_map", "start_array"):
            depth += 1
            if depth > _DEEPEST:
                raise SourceError(
                    "the file is nested too deep",
                    where=str(file.path),
                    expected=f"at most {_DEEPEST} levels",
                    do="correct the file",
                )
        elif event in ("end_map", "end_array"):
            depth -= 1
        yield event, value


def _code(crs: str, file: SourceFile) -> int:
    try:
        found = pyproj.CRS.from_user_input(f"EPSG:{crs}" if crs.isdigit() else crs)
    except pyproj.exceptions.CRSError:
        found = None
    if found is not None and (code := epsg_of(found)) is not None:
        return code
    raise SourceError(
        "the file states a frame that has no EPSG code",
        where=f"{file.path}, member crs",
        expected="a name such as urn:ogc:def:crs:EPSG::2056",
        found=crs[:120],
        do="correct the member, or convert the file to WGS 84",
    )


def _items(file: SourceFile, prefix: str) -> Iterator[Any]:
    with _reading(file) as stream:
        try:
            yield from ijson.items(stream, prefix, use_float=True)
        except (ijson.JSONError, ValueError, OSError, EOFError) as error:
            _damaged(file, error)


def _reading(file: SourceFile) -> gzip.GzipFile | io.BufferedReader:
    if file.path.is_dir():
        raise SourceError("a folder stands where a file is meant", where=str(file.path))
    return open_bytes(file.path)


def _damaged(file: SourceFile, error: Exception) -> NoReturn:
    words = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    raise SourceError(
        "the file is not JSON, or damaged", where=str(file.path), found=words, do="correct the file, or copy it again"
    ) from error
