"""Sources: one loader class per format. A new format is one new module here and its line in `LOADERS`."""

from __future__ import annotations

from georag_assets.corpus.sources.csv_table import CsvLoader
from georag_assets.corpus.sources.geoparquet import GeoParquetLoader
from georag_assets.corpus.sources.json_lines import JsonLinesLoader
from georag_assets.corpus.sources.loader import Loader, Rejection, SourceFile, list_files
from georag_assets.corpus.sources.text import MarkdownLoader, PlainTextLoader

__all__ = ["LOADERS", "Loader", "Rejection", "SourceFile", "list_files", "loader_for"]

LOADERS: tuple[Loader, ...] = (MarkdownLoader(), PlainTextLoader(), JsonLinesLoader(), CsvLoader(), GeoParquetLoader())


def loader_for(name: str | None) -> Loader | None:
    """Return the loader of a format's name."""
    return next((loader for loader in LOADERS if name in loader.formats), None)
