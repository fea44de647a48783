"""GeoParquet: as records, and as a sidecar of geometry for documents that lie in other files.

What belongs here: Parquet to records and to a look-up of geometry, with the CRS that the file states. What does not:
records to documents (`records`). pyarrow and shapely read it; geopandas would take seconds to import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from georag_assets.corpus.declaration import CorpusDeclaration, Sidecar, Source
from georag_assets.corpus.models import Document
from georag_assets.corpus.sources.loader import Rejection, SourceFile, UnusableError
from georag_assets.corpus.sources.records import RecordReader, check_columns
from georag_assets.corpus.sources.shapes import Shape, checked, stated_crs
from georag_assets.errors import SourceError

_BATCH_ROWS = 1_000


class GeoParquetLoader:
    """A Parquet file of records; without `columns.bbox`, their geometry is `columns.geometry` or the primary column."""

    formats = ("geoparquet",)

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield a document per row."""
        columns = source.columns
        assert columns is not None
        parquet = _open(file.path)
        names = parquet.schema_arrow.names
        check_columns(set(columns.declared) - set(names), names, file)
        column, epsg, stated = stated_crs(parquet.schema_arrow.metadata, columns.geometry)
        if columns.geometry is None and columns.bbox is None and column in names:
            columns = columns.model_copy(update={"geometry": column})
        evidence = f"GeoParquet metadata of {file.name}: {stated}"
        reader = RecordReader(file, columns, declaration, "application/vnd.apache.parquet", epsg, evidence)
        number = 0
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(columns.declared)):
            for record in batch.to_pylist():
                number += 1
                yield reader.read(record, number)


class SidecarGeometry:
    """The geometry of a sidecar by id; remembers which rows were asked for."""

    def __init__(self, declared: Sidecar) -> None:
        path = declared.sidecar
        parquet = _open(path)
        schema = parquet.schema_arrow
        column, stated, words = stated_crs(schema.metadata, declared.column)
        check_columns({declared.id, column} - set(schema.names), schema.names, SourceFile(path, path.name))
        if declared.epsg and stated and declared.epsg != stated:
            raise SourceError(
                "the sidecar states another frame than the declaration",
                where=str(path),
                expected=f"EPSG:{declared.epsg} (geometry.epsg)",
                found=words,
                do="remove geometry.epsg, or correct the file",
            )
        table = parquet.read(columns=[declared.id, column])
        self.epsg = stated or declared.epsg
        self.evidence = (
            f"GeoParquet metadata of {path.name}: {words}"
            if stated or not declared.epsg
            else "geometry.epsg as declared"
        )
        self._name = path.name
        self._geometry = table[column].cast(pa.large_binary()).combine_chunks()
        ids = [None if value is None else str(value) for value in table[declared.id].to_pylist()]
        self._rows = {value: row for row, value in enumerate(ids) if value is not None}
        self._repeated = {value for value, count in Counter(ids).items() if count > 1 and value is not None}
        self._asked: set[str] = set()

    def of(self, key: str) -> Shape | None:
        """Return the shape with this id; None where the file has no row, or no geometry, for it."""
        row = self._rows.get(key)
        if row is None:
            return None
        self._asked.add(key)
        if key in self._repeated:
            raise UnusableError("bad_geometry", f"{self._name} has several rows with id {key!r}")
        wkb = self._geometry[row].as_py()
        if wkb is None:
            return None
        where = f"{self._name}, row {row + 1}"
        try:
            geometry = shapely.from_wkb(wkb)
        except (shapely.errors.ShapelyError, ValueError) as error:
            raise UnusableError("bad_geometry", f"{where}: {str(error).splitlines()[0][:200]}") from error
        return checked(geometry, self.epsg, self.evidence, where)

    def has(self, key: str) -> bool:
        """Tell whether the file has a row with this id."""
        return key in self._rows

    @property
    def unused(self) -> list[str]:
        """The ids that no document asked for."""
        return sorted(self._rows.keys() - self._asked)


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        what = "a folder stands where a file is meant" if path.is_dir() else "the Parquet file cannot be read"
        raise SourceError(what, where=str(path), found=str(error).splitlines()[0][:200]) from error
