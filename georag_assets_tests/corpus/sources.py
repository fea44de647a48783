"""Sources on disk for tests of this room: folders of files and the declarations over them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.corpus.declaration import CorpusDeclaration, parse_attributes
from georag_assets.corpus.documents import row_document, sync_documents
from georag_assets.corpus.models import DOCUMENTS, QUARANTINE, Document
from georag_assets.home import Home
from georag_assets.reports import StageReport


def declared(folder: Path, sources: object, **more: object) -> CorpusDeclaration:
    """Return a declaration as a `defs.yaml` in the folder would make it; nothing is quarantined into failure."""
    attributes = {"name": "corpus", "sources": sources, "quarantine_threshold": 1.0} | more
    return parse_attributes(attributes, folder / "defs.yaml")


def write_texts(folder: Path, texts: Mapping[str, str | bytes]) -> None:
    """Write files below the folder."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_geoparquet(
    path: Path, rows: Mapping[str, Sequence[Any]], geometry: Sequence[BaseGeometry | bytes | None], crs: object = None
) -> None:
    """Write a GeoParquet file; `crs` is a PROJJSON mapping, an EPSG code, None (unknown) or `...` (left out)."""
    column: dict[str, object] = {"encoding": "WKB", "geometry_types": []}
    if crs is not ...:
        column["crs"] = {"id": {"authority": "EPSG", "code": crs}, "name": "x"} if isinstance(crs, int) else crs
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
    wkb = [item if item is None or isinstance(item, bytes) else shapely.to_wkb(item) for item in geometry]
    table = pa.table({**rows, "geometry": pa.array(wkb, pa.binary())})
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)


def synced(home: Home, declaration: CorpusDeclaration, **more: bool) -> StageReport:
    """Sync, and hold every sync of every test to its accounting."""
    report = sync_documents(home, declaration, **more)
    accounted = next(check for check in report.checks if check.name == "documents_accounted_for")
    assert accounted.passed, accounted
    return report


def documents(home: Home) -> dict[str, Document]:
    """Return the documents that the table has now."""
    return {row["doc_id"]: row_document(row) for row in home.tables.read("corpus", DOCUMENTS).to_pylist()}


def quarantined(home: Home) -> dict[str, tuple[str, str]]:
    """Return location -> (kind, reason)."""
    rows = home.tables.read("corpus", QUARANTINE).to_pylist()
    return {row["location"]: (row["kind"], row["reason"]) for row in rows}
