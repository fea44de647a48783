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
    """A JSON object a line; a line that is none is quarantined and the next is read."""

    formats = ("jsonl",)

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield a document per line; blank lines are nothing."""
        assert source.columns is not None
        reader = RecordReader(file, source.columns, declaration, "application/x-ndjson")
        limit = int(declaration.max_document_mb * 2**20)
        with open_bytes(file.path) as stream:
            for number, line in enumerate(_lines(stream, limit, file), start=1):
                if line is None:
                    reason = f"the line is longer than {limit:,} bytes (max_document_mb)"
                    yield reader.reject(number, "too_large", reason)
                elif line.strip():
                    yield _record(reader, line, number, source.encoding)
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


def _record(reader: RecordReader, line: bytes, number: int, encoding: str) -> Document | Rejection:
    try:
        record = json.loads(line.decode(encoding), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        reason = f"byte 0x{line[error.start]:02x} at offset {error.start} of the line is not {encoding}"
        return reader.reject(number, "wrong_encoding", reason)
    except (ValueError, RecursionError) as error:
        return reader.reject(number, "not_json", f"not a JSON record: {str(error)[:200]}")
    if not isinstance(record, dict):
        return reader.reject(number, "not_json", f"expected a JSON object, found {type(record).__name__}")
    return reader.read(record, number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
