"""Records: a row of named values as a document, the same for every format of records.

What belongs here: which value becomes which part of a document, and what makes a record unusable. What does not: how
a format is read, and geometry (`shapes`). Only columns that the declaration names are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from georag_assets.corpus.declaration import Columns, CorpusDeclaration
from georag_assets.corpus.models import Document
from georag_assets.corpus.period import Period, parse_period
from georag_assets.corpus.sources.loader import Rejection, SourceFile, UnusableError
from georag_assets.corpus.sources.shapes import Shape, box_of, shape_of
from georag_assets.corpus.sources.text import check_characters, check_text
from georag_assets.errors import PeriodError, SourceError


@dataclass(slots=True)
class RecordReader:
    """Turns the records of one file into documents, and notices a declared column that no record has."""

    file: SourceFile
    columns: Columns
    declaration: CorpusDeclaration
    media_type: str
    geometry_epsg: int | None = None
    geometry_evidence: str | None = None
    _unseen: set[str] = field(init=False)
    _others: dict[str, None] = field(init=False, default_factory=dict)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._unseen = set(self.columns.declared)

    def read(self, record: Mapping[str, object], line: int) -> Document | Rejection:
        """Return the record's document, or why there is none."""
        self._count += 1
        if self._unseen:
            self._unseen.difference_update(record)
            self._others.update(dict.fromkeys(record))
        location = f"{self.file.name}:{line}"
        doc_id = location
        try:
            doc_id = _identifier(record.get(self.columns.id), self.columns.id)
            return self._document(record, doc_id, location)
        except UnusableError as error:
            return Rejection(doc_id, self.file.name, location, error.kind, error.reason)

    def reject(self, line: int, kind: str, reason: str) -> Rejection:
        """Return the rejection of a line that is not a record at all."""
        location = f"{self.file.name}:{line}"
        return Rejection(location, self.file.name, location, kind, reason)

    def finish(self) -> None:
        """Raise SourceError where a declared column was in no record: a mistake in the declaration, not in a record."""
        if self._count:
            check_columns(self._unseen, self._others, self.file)

    def _document(self, record: Mapping[str, object], doc_id: str, location: str) -> Document:
        columns = self.columns
        parts = [part for name in columns.text if (part := _text(record.get(name), name)) and part.strip()]
        text = "\n\n".join(parts)
        check_text(text)
        limit = int(self.declaration.max_document_mb * 2**20)
        if len(text) > limit:
            raise UnusableError("too_large", f"{len(text):,} characters; max_document_mb allows {limit:,}")
        shape = self._shape(record)
        title = _text(record.get(columns.title), columns.title) if columns.title else None
        if title is not None:
            title = " ".join(title.split())
        return Document(
            doc_id=doc_id,
            text=text,
            title=title or doc_id,
            source=f"{self.file.name}#{doc_id}",
            location=location,
            media_type=self.media_type,
            content_sha256="",
            geometry_wkb=shape.wkb if shape else None,
            geometry_epsg=shape.epsg if shape else None,
            geometry_evidence=shape.evidence if shape else None,
            geometry_flags=shape.flags if shape else self._empty(record),
            period=self._period(record),
            licence=_optional(record, columns.licence),
            url=_optional(record, columns.url),
            revision=_optional(record, columns.revision),
            fields={name: value for name in columns.fields if (value := _optional(record, name))},
        )

    def _shape(self, record: Mapping[str, object]) -> Shape | None:
        declared = self.declaration.frame.epsg
        if self.columns.bbox:
            values: object = [record.get(name) for name in self.columns.bbox]
            if len(self.columns.bbox) == 1:
                values = record.get(self.columns.bbox[0])
            return box_of(values, declared, ", ".join(self.columns.bbox))
        if self.columns.geometry:
            value = record.get(self.columns.geometry)
            stated, evidence = self.geometry_epsg, self.geometry_evidence
            if stated is None and declared is not None:
                stated, evidence = declared, "declared frame of the corpus"
            return shape_of(value, stated, evidence, self.columns.geometry, file_states=self.geometry_epsg is not None)
        return None

    def _empty(self, record: Mapping[str, object]) -> tuple[str, ...]:
        """Flag a geometry that is given and has no coordinates, which is also what GDAL makes of a bad one."""
        given = record.get(self.columns.geometry) if self.columns.geometry else None
        return () if given in (None, "", b"") else ("empty_geometry",)

    def _period(self, record: Mapping[str, object]) -> Period | None:
        if self.columns.period is None:
            return None
        found: list[Period] = []
        for name in self.columns.period:
            value = record.get(name)
            for item in value if isinstance(value, list) else [value]:
                if item is None or item == "":
                    continue
                try:
                    found.append(parse_period(item))
                except PeriodError as error:
                    if self.columns.unreadable_period == "ignore":
                        continue
                    raise UnusableError("bad_period", f"column {name}: {error}") from error
        if not found:
            return None
        return min(start for start, _ in found), max(end for _, end in found)


def check_columns(missing: Iterable[str], there: Iterable[str], file: SourceFile) -> None:
    """Raise SourceError when a declared column is not among those there."""
    missing = sorted(missing)
    if missing:
        raise SourceError(
            f"declared column{'s' * (len(missing) > 1)} missing: {', '.join(missing)}",
            where=str(file.path),
            expected=", ".join(missing),
            found=", ".join(sorted(map(str, there)))[:400],
            do="correct `columns` in the declaration",
        )


def _identifier(value: object, column: str) -> str:
    if isinstance(value, str) and value.strip():
        check_characters(value)
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UnusableError("missing_id", f"column {column}: expected text or a whole number, found {type(value).__name__}")


def _text(value: object, column: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str | int | float):
        text = str(value)
    elif isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        text = ", ".join(map(str, value))
    else:
        raise UnusableError("bad_column", f"column {column}: expected text, found {type(value).__name__}")
    check_characters(text)
    return text


def _optional(record: Mapping[str, object], column: str | None) -> str | None:
    text = _text(record.get(column), column) if column else None
    return text if text is not None and text.strip() else None
