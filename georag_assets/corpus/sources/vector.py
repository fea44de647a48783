"""Map layers that GDAL reads, as records: GeoPackage, Shapefile, KML and GML.

What belongs here: one layer's rows as records, and the frame that the file states. What does not: records to documents
(`records`). Rows come in Arrow batches; a frame is taken from the file or its `.prj` and never guessed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.parsers import expat

import pyproj

from georag_assets.corpus.declaration import CorpusDeclaration, Source, format_of
from georag_assets.corpus.models import Document
from georag_assets.corpus.sources.loader import Rejection, SourceFile
from georag_assets.corpus.sources.records import RecordReader, check_columns
from georag_assets.corpus.sources.shapes import epsg_of
from georag_assets.errors import SourceError

_BATCH_ROWS = 1_000
_GEOMETRY = "geometry"
_MEDIA_TYPES = {
    "geopackage": "application/geopackage+sqlite3",
    "shapefile": "application/vnd.shp",
    "kml": "application/vnd.google-earth.kml+xml",
    "gml": "application/gml+xml",
}
# GDAL would write what it learned of a GML file beside it, into somebody's source folder.
_OPEN_OPTIONS = {"gml": {"WRITE_GFS": "NO"}}
_XML = ("kml", "gml")
# What a Shapefile cannot be read without.
_PARTS = (".shx", ".dbf")


class VectorLoader:
    """A layer of a file; a record is a row's columns with its `geometry`, and `fid` where the file has no such column.

    Coordinates come as longitude and latitude, easting and northing, whatever order the frame's definition has.
    """

    formats = ("geopackage", "shapefile", "kml", "gml")

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield a document per row."""
        from pyogrio import errors  # Imports pandas and geopandas: a second that most commands can do without.

        columns = source.columns
        assert columns is not None
        form = source.format or format_of(file.path) or ""
        _check_file(file, form)
        try:
            names_of_frames = _read_frames(file) if form in _XML else {}
            layer = _layer(file, source.layer, form)
            with _opened(file, layer, form) as (described, stream):
                names = [*described["fields"], _GEOMETRY, "fid"]
                check_columns(set(columns.declared) - set(names), names, file)
                if columns.geometry is None and columns.bbox is None:
                    columns = columns.model_copy(update={"geometry": _GEOMETRY})
                epsg, stated = _frame(described["crs"], file, form, layer, names_of_frames)
                reader = RecordReader(file, columns, declaration, _MEDIA_TYPES[form], epsg, stated)
                number = 0
                for batch in stream:
                    for row in batch.to_pylist():
                        number += 1
                        yield reader.read(_record(row, described), number)
        except errors.CRSError as error:
            raise SourceError(
                "the frame that the map layer states cannot be read",
                where=str(file.path.with_suffix(".prj") if form == "shapefile" else file.path),
                expected="a definition of a reference frame in WKT",
                found=_first_line(error),
                do="copy the file again; or take the definition away and declare the corpus's frame",
            ) from error
        except errors.DataSourceError as error:
            raise _unreadable(file, error) from error


def _record(row: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    geometry = row.pop(described["geometry_name"] or "wkb_geometry", None)
    fid = row.pop(described["fid_column"] or "OGC_FID", None)
    return {"fid": fid, **row, _GEOMETRY: geometry}


def _opened(file: SourceFile, layer: str, form: str) -> contextlib.AbstractContextManager[tuple[dict[str, Any], Any]]:
    import pyogrio

    opened: contextlib.AbstractContextManager[tuple[dict[str, Any], Any]] = pyogrio.raw.open_arrow(
        file.path,
        layer=layer,
        batch_size=_BATCH_ROWS,
        return_fids=True,
        use_pyarrow=True,
        **_OPEN_OPTIONS.get(form, {}),
    )
    return opened


def _check_file(file: SourceFile, form: str) -> None:
    if file.path.is_dir():
        raise SourceError("a folder stands where a file is meant", where=str(file.path))
    if form != "shapefile":
        return
    lacking = [part for part in _PARTS if part not in _beside(file)]
    if lacking:
        raise SourceError(
            "the Shapefile is not whole",
            where=str(file.path),
            expected=f"{', '.join(file.path.stem + part for part in lacking)} beside it",
            do="copy all files of the Shapefile",
        )


def _beside(file: SourceFile) -> dict[str, Path]:
    """Return the files of the same stem by their suffix in lower case."""
    return {
        path.suffix.lower(): path for path in file.path.parent.iterdir() if path.stem == file.path.stem and path.suffix
    }


def _read_frames(file: SourceFile) -> dict[str, int]:
    """Return each `srsName` of a GML or KML file with its first line; raise where the file is cut off.

    GDAL reads as much of such a file as there is and says nothing, nor does it when a layer's frames differ.
    """
    frames: dict[str, int] = {}

    def started(_: str, attributes: dict[str, str]) -> None:
        if name := attributes.get("srsName"):
            frames.setdefault(name, parser.CurrentLineNumber)

    parser = expat.ParserCreate()
    parser.StartElementHandler = started
    try:
        with file.path.open("rb") as stream:
            parser.ParseFile(stream)
    except (expat.ExpatError, OSError) as error:
        raise _unreadable(file, error) from error
    return frames


def _layers(file: SourceFile, form: str) -> Iterator[str]:
    """Yield the names of a file's layers."""
    import pyogrio
    from pyogrio.errors import DataLayerError

    if form not in _OPEN_OPTIONS:  # which `list_layers` does not take
        yield from (str(name) for name, _ in pyogrio.list_layers(file.path))
        return
    for number in itertools.count():
        try:
            described = pyogrio.read_info(file.path, layer=number, **_OPEN_OPTIONS[form])
        except DataLayerError:
            return
        yield str(described["layer_name"])


def _layer(file: SourceFile, wanted: str | None, form: str) -> str:
    layers = list(_layers(file, form))
    if wanted is None and len(layers) == 1:
        return layers[0]
    if wanted in layers:
        return str(wanted)
    raise SourceError(
        "the file holds several layers" if wanted is None else f"the file has no layer {wanted!r}",
        where=str(file.path),
        expected="`layer` in the source's declaration, one of those found",
        found=", ".join(layers)[:400] or "no layer",
    )


def _frame(
    crs: str | None, file: SourceFile, form: str, layer: str, names: Mapping[str, int]
) -> tuple[int | None, str]:
    """Return the code of the frame that the file defines, and its words; no code where the definition equals none."""
    where = f"layer {layer} of {file.name}"
    if form == "shapefile":
        beside = _beside(file).get(".prj")
        where = beside.name if beside else f"{file.path.stem}.prj"
        if beside is None:
            return None, f"{where} is not there"
    if not crs and len(names) > 1:
        raise SourceError(
            "the map layer states several frames",
            where=f"{file.path}, layer {layer}",
            expected="one srsName for all of its geometries",
            found="; ".join(f"{name} from line {line}" for name, line in names.items())[:400],
            do="write a file for each frame",
        )
    if not crs:
        return None, f"{where} states " + (f"{next(iter(names))}, which is no known frame" if names else "no frame")
    found = pyproj.CRS.from_user_input(crs)
    code = epsg_of(found)
    return code, f"{where}: EPSG:{code} {found.name}" if code else f"{where}: {found.name} (no EPSG code)"


def _unreadable(file: SourceFile, error: Exception) -> SourceError:
    return SourceError(
        "the map layer cannot be read", where=str(file.path), found=_first_line(error), do="copy the file again"
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
