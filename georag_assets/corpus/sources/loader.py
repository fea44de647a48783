"""What every loader is: the interface, the file it is given, what it rejects.

What belongs here: what all formats share. What does not: a format (its own module), finding files (`listing`) and
bringing them here (`remote`, `archives`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from georag_assets.corpus.declaration import CorpusDeclaration, Source
from georag_assets.corpus.models import Document


@dataclass(frozen=True, slots=True)
class Rejection:
    """A document that cannot be taken: it goes to the quarantine with its reason, and the sync goes on."""

    doc_id: str
    source: str
    location: str
    kind: str
    reason: str


class UnusableError(Exception):
    """Raised inside a loader for one document; becomes a `Rejection`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to load, lying on this machine; `name` is its stable name inside the corpus, with `/` between folders.

    A file out of an archive is named `<archive>!/<member>`; where it came from elsewhere, `path` is a passing copy.
    """

    path: Path
    name: str


class Loader(Protocol):
    """Reads files of some formats into documents, streaming; a bad document is yielded as a `Rejection`."""

    @property
    def formats(self) -> tuple[str, ...]:
        """The format names of declarations that this loader reads."""
        ...

    def load(self, file: SourceFile, source: Source, declaration: CorpusDeclaration) -> Iterator[Document | Rejection]:
        """Yield the documents of one file; raise SourceError where the file as a whole cannot be read."""
        ...
