"""What every loader is: the interface, rejected items, and finding a source's files.

What belongs here: what all formats share. What does not: a format (its own module).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from georag_assets.corpus.declaration import CorpusDeclaration, Source, format_of
from georag_assets.corpus.models import Document
from georag_assets.errors import SourceError


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
    """A file to load; `name` is its stable name inside the corpus, with `/` between folders."""

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


def list_files(source: Source, declaration: CorpusDeclaration) -> list[SourceFile]:
    """Return the files that a source means, sorted.

    Raises
    ------
    SourceError
        The root is absent or cannot be listed, a folder below it cannot, or a folder stands where a file is meant.
        (A plain glob skips what it may not read, and its documents would look removed.)
    """
    path = source.path
    parts = path.parts
    wild = next((number for number, part in enumerate(parts) if glob.has_magic(part)), None)
    if wild is not None:
        root = Path(*parts[:wild])
        _check_listable(root, deep=len(parts) - wild > 1)
        matches = sorted(root.glob(str(Path(*parts[wild:]))))
        # A pattern such as `**` also meets folders; one whose name looks like a file is left for the loader to refuse.
        return [
            _named(match, root, declaration)
            for match in matches
            if not any(part.startswith(".") for part in match.relative_to(root).parts)
            and (format_of(match) or not match.is_dir())
        ]
    if not path.exists():
        if path.is_symlink():
            raise SourceError("the source is a link to nothing", where=str(path))
        raise SourceError("the source is not there", where=str(path), do="check the path, or that it is mounted")
    if not path.is_dir():
        return [_named(path, None, declaration)]
    if source.format or format_of(path):
        raise SourceError("the source is a folder where a file is meant", where=str(path), do=f"write {path.name}/*")
    _check_listable(path, deep=True)
    found = sorted(item for item in path.rglob("*") if item.is_file() and format_of(item))
    return [_named(item, path, declaration) for item in found]


def _check_listable(root: Path, *, deep: bool) -> None:
    def fail(error: OSError) -> NoReturn:
        missing = isinstance(error, FileNotFoundError)
        raise SourceError(
            "the source's root is not there" if missing else "the source's folder cannot be listed",
            where=str(error.filename or root),
            found=error.strerror,
            do="check the path, or that it is mounted" if missing else "check its permissions",
        ) from error

    try:
        os.scandir(root).close()
    except OSError as error:
        fail(error)
    if deep:
        for _ in os.walk(root, onerror=fail):
            pass


def _named(path: Path, root: Path | None, declaration: CorpusDeclaration) -> SourceFile:
    """Name a file: relative to the declaration's folder where it lies below it, else from its root on.

    A file declared by itself (no root) and outside the folder is named by its name alone.
    """
    folder = declaration.file.parent if declaration.file else None
    if folder is not None and path.is_relative_to(folder):
        return SourceFile(path, path.relative_to(folder).as_posix())
    return SourceFile(path, f"{root.name}/{path.relative_to(root).as_posix()}" if root else path.name)
