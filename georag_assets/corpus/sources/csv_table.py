"""CSV, plain or gzip: one record a row, the first row its header.

What belongs here: rows to records. What does not: records to documents (`records`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from georag_assets.corpus.declaration import CorpusDeclaration, Source
from georag_assets.corpus.models import Document
from georag_assets.corpus.sources.json_lines import open_bytes
from georag_assets.corpus.sources.loader import Rejection, SourceFile
from georag_assets.corpus.sources.records import RecordReader, check_columns
from georag_assets.errors import SourceError

_DELIMITERS = ",;\t|"


class CsvLoader:
    """A table with a header; the delimiter is the one under which the header has the id column."""

    formats = ("csv",)

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield a document per row; line ends inside quotes stay as they are."""
        columns = source.columns
        assert columns is not None
        reader = RecordReader(file, columns, declaration, "text/csv")
        limit = int(declaration.max_document_mb * 2**20)
        csv.field_size_limit(max(limit, csv.field_size_limit()))
        encoding = "utf-8-sig" if source.encoding.lower() in {"utf-8", "utf8"} else source.encoding
        # A byte that does not decode becomes a lone surrogate, so that its row alone is refused and not the file.
        with io.TextIOWrapper(open_bytes(file.path), encoding, errors="surrogateescape", newline="") as stream:
            header_line = stream.readline(2**20)
            if not header_line.strip():
                raise SourceError("the table is empty", where=str(file.path), expected="a header row")
            delimiter = next(
                (d for d in _DELIMITERS if columns.id in next(csv.reader([header_line], delimiter=d))), ","
            )
            header = next(csv.reader([header_line], delimiter=delimiter))
            check_columns(set(columns.declared) - set(header), header, file)
            rows = csv.reader(stream, delimiter=delimiter, strict=True)
            line = 2
            while True:
                try:
                    row = next(rows)
                except StopIteration:
                    return
                except (csv.Error, EOFError, OSError) as error:
                    raise SourceError(
                        "the table cannot be read on",
                        where=f"{file.path}:{line}",
                        found=str(error),
                        do="look for an unclosed quote or a cut-off file",
                    ) from error
                if row:
                    yield _document(reader, header, row, line)
                line = rows.line_num + 2


def _document(reader: RecordReader, header: list[str], row: list[str], line: int) -> Document | Rejection:
    if len(row) != len(header):
        return reader.reject(line, "ragged_row", f"{len(row)} values for {len(header)} columns")
    return reader.read(dict(zip(header, row, strict=True)), line)
