"""Sources: one loader class per format. A new format is one new module here and its line in `LOADERS`."""

from __future__ import annotations

from georag_assets.corpus.sources.archives import Unpacked
from georag_assets.corpus.sources.arriving import arriving
from georag_assets.corpus.sources.csv_table import CsvLoader
from georag_assets.corpus.sources.geojson import GeoJsonLoader
from georag_assets.corpus.sources.geoparquet import GeoParquetLoader
from georag_assets.corpus.sources.html import HtmlLoader
from georag_assets.corpus.sources.json_lines import JsonLinesLoader
from georag_assets.corpus.sources.listing import Listed, Listing, list_source
from georag_assets.corpus.sources.loader import Loader, Rejection, SourceFile
from georag_assets.corpus.sources.pdf import PdfLoader
from georag_assets.corpus.sources.text import (
    AsciiDocLoader,
    MarkdownLoader,
    PlainTextLoader,
    ReStructuredTextLoader,
)
from georag_assets.corpus.sources.vector import VectorLoader

__all__ = [
    "LOADERS",
    "Listed",
    "Listing",
    "Loader",
    "Rejection",
    "SourceFile",
    "Unpacked",
    "arriving",
    "list_source",
    "loader_for",
]

LOADERS: tuple[Loader, ...] = (
    MarkdownLoader(),
    PlainTextLoader(),
    ReStructuredTextLoader(),
    AsciiDocLoader(),
    HtmlLoader(),
    PdfLoader(),
    JsonLinesLoader(),
    CsvLoader(),
    GeoParquetLoader(),
    GeoJsonLoader(),
    VectorLoader(),
)


def loader_for(name: str | None) -> Loader | None:
    """Return the loader of a format's name."""
    return next((loader for loader in LOADERS if name in loader.formats), None)
