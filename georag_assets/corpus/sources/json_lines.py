"""JSON Lines, plain or gzip: one record a line, read a line at a time.

What belongs here: lines to records. What does not: records to documents (`records`).
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from georag_assets.corpus.declaration import CorpusDeclaration, Source
from georag_assets.corpus.models import Document
from georag_assets.corpus.sources.loader import Rejection, SourceFile
from georag_assets.corpus.sources.records import RecordReader
from georag_assets.errors import SourceError


class JsonLinesLoader:
    """A JSON object a line, or the objects of a list in it; a line that is none is quarantined and the next is read."""

    formats = ("jsonl",)

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield a document per line, or per item of the line's list; blank lines are nothing."""
        assert source.columns is not None
        reader = RecordReader(file, source.columns, declaration, "application/x-ndjson")
        limit = int(declaration.max_document_mb * 2**20)
        with open_bytes(file.path) as stream:
            for number, line in enumerate(_lines(stream, limit, file), start=1):
                if line is None:
                    reason = f"the line is longer than {limit:,} bytes (max_document_mb)"
                    yield reader.reject(number, "too_large", reason)
                elif line.strip():
                    yield from _documents(reader, line, number, source)
        reader.finish()


def open_bytes(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a file that may be gzip."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rb")
        return path.open("rb")
    except OSError as error:
        raise SourceError("the source file cannot be read", where=str(path), found=error.strerror) from error


def _lines(stream: gzip.GzipFile | io.BufferedReader, limit: int, file: SourceFile) -> Iterator[bytes | None]:
    """Yield lines; None for one over the limit, of which no more than the limit is ever held."""
    first = True
    while True:
        try:
            line = stream.readline(limit + 1)
            if len(line) > limit and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = stream.readline(2**20)
                yield None
                continue
        except (EOFError, zlib.error, OSError) as error:  # BadGzipFile is an OSError
            raise SourceError(
                "the source file is damaged or cut off", where=str(file.path), found=str(error), do="copy it again"
            ) from error
        if not line:
            return
        yield line.removeprefix(b"\xef\xbb\xbf") if first else line
        first = False


def _documents(reader: RecordReader, line: bytes, number: int, source: Source) -> Iterator[Document | Rejection]:
    try:
        record = json.loads(line.decode(source.encoding), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        reason = f"byte 0x{line[error.start]:02x} at offset {error.start} of the line is not {source.encoding}"
        yield reader.reject(number, "wrong_encoding", reason)
        return
    except (ValueError, RecursionError) as error:
        yield reader.reject(number, "not_json", f"not a JSON record: {str(error)[:200]}")
        return
    if not isinstance(record, dict):
        yield reader.reject(number, "not_json", f"expected a JSON object, found {type(record).__name__}")
        return
    items = [record] if source.records is None else record.get(source.records)
    if not isinstance(items, list):
        reason = f"{source.records}: expected a list of records, found {type(items).__name__}"
        yield reader.reject(number, "bad_column", reason)
        return
    for item in items:
        if isinstance(item, dict):
            yield reader.read(item, number)
        else:
            reason = f"{source.records}: expected a JSON object, found {type(item).__name__}"
            yield reader.reject(number, "bad_column", reason)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
