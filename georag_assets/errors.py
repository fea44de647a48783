"""The error hierarchy: one root, one class for each kind of thing that can go wrong.

What belongs here: exception classes and the shape of their messages. What does not: logging, exit codes (`cli`)
and HTTP statuses (`service`), which map these classes.
"""

from __future__ import annotations


class GeoragError(Exception):
    """Root of every error this package raises on purpose.

    Parameters
    ----------
    what
        What went wrong, in one sentence.
    where
        File with line or offset, table, corpus or id.
    expected, found
        What the code needed and what was there.
    do
        What the reader can do about it.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        do: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.do = do
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [self.what]
        for label, value in (
            ("where", self.where),
            ("expected", self.expected),
            ("found", self.found),
            ("do", self.do),
        ):
            if value:
                parts.append(f"{label}: {value}")
        return "; ".join(parts)


class DeclarationError(GeoragError):
    """YAML declarations that cannot be read as what they claim to be; `problems` has a line for each fault found."""

    def __init__(self, what: str, *, problems: tuple[str, ...] = (), **parts: str | None) -> None:
        self.problems = problems
        super().__init__(what, **parts)

    def _message(self) -> str:
        if len(self.problems) < 2:
            return "; ".join([super()._message(), *self.problems])
        return "\n  ".join([super()._message(), *self.problems])


class PeriodError(GeoragError):
    """A date, year or period is not in a notation that can only mean one thing."""


class SettingError(GeoragError):
    """A GEORAG_* setting has a value that cannot work."""


class WorkerError(GeoragError):
    """A worker process died; nothing of the stage was committed."""


class SourceError(GeoragError):
    """A source file or folder cannot be read at all (a bad record in it is quarantined instead)."""


class RemovalThresholdError(GeoragError):
    """A sync would remove more of a corpus than its declared share."""


class WriterBusyError(GeoragError):
    """Another process is writing the same corpus."""


class TableError(GeoragError):
    """An Iceberg table cannot be read or committed."""


class GeometryError(GeoragError):
    """A geometry or a region cannot be used: empty, non-finite, negative radius, unreadable."""


class FrameError(GeoragError):
    """A reference frame cannot be constructed or used."""


class EmbeddingError(GeoragError):
    """A model cannot be loaded or gives vectors that cannot be stored."""


class DiskSpaceError(GeoragError):
    """Free space does not cover what is about to be written."""


class IndexBuildError(GeoragError):
    """An index build failed or its folder does not verify."""


class ServerError(GeoragError):
    """A Qdrant server cannot be reached, refuses, or does not hold what this home's record says of it.

    `status` is the HTTP status where the server answered.
    """

    def __init__(self, what: str, *, status: int | None = None, **parts: str | None) -> None:
        self.status = status
        super().__init__(what, **parts)


class PromotionError(GeoragError):
    """A build cannot become live."""


class QueryError(GeoragError):
    """A query is malformed: not the index's fault and not answerable as asked."""


class PlaceError(GeoragError):
    """A named place was not resolved to one shape; `readings` lists those there are."""

    def __init__(self, what: str, *, readings: tuple[str, ...] = (), **parts: str | None) -> None:
        self.readings = readings
        super().__init__(what, **parts)
