"""Which files a source means, wherever they lie: a file, a folder, a pattern; on this machine or behind an address.

What belongs here: finding, naming and telling known from unknown files, without reading any. What does not: bringing
them here (`remote`, `archives`), reading them (the loaders).
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from georag_assets.corpus.declaration import (
    CorpusDeclaration,
    Source,
    format_of,
    is_archive,
)
from georag_assets.errors import SourceError

# Parts of a Shapefile, read with it.
COMPANIONS = (".shx", ".dbf", ".prj", ".cpg", ".qix", ".sbn", ".sbx", ".qpj", ".shp.xml")


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a source, found and not read.

    Attributes
    ----------
    name
        Its stable name inside the corpus, with `/` between folders.
    where
        Path or address, for messages; an address without its query, which may hold a signature.
    stamp
        Changes when the contents do: size and time, or the store's ETag.
    path
        Where it lies on this machine; None for one elsewhere.
    remote
        How the remote file system names it; None for one on this machine.
    """

    name: str
    where: str
    stamp: str
    path: Path | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source by name, and the names of those whose format is not known."""

    files: tuple[Listed, ...]
    unknown: tuple[str, ...] = ()


def list_source(source: Source, declaration: CorpusDeclaration) -> Listing:
    """Return the files that a source means, sorted by where they lie.

    A file declared by itself, or met by a pattern that names its suffix (`*.dat`), is listed whatever its format. In a
    folder, or by a pattern such as `**/*`, a file of no known format is counted and named instead.

    Raises
    ------
    SourceError
        The root is absent or cannot be listed, a folder below it cannot, or a folder stands where a file is meant.
        (A plain glob skips what it may not read, and its documents would look removed.)
    """
    if source.url is not None:
        from georag_assets.corpus.sources.remote import list_remote

        found, root, mixed = list_remote(source)
    else:
        found, root, mixed = _list_local(source, declaration)
    kept: list[Listed] = []
    unknown: list[str] = []
    stems = {listed.name[: -len(".shp")] for listed in found if listed.name.lower().endswith(".shp")}
    for listed in found:
        relative = listed.name.removeprefix(f"{root}/") if root else listed.name
        if is_excluded(relative, source):
            continue
        if not mixed or is_readable(listed.name, source):
            kept.append(listed)
        elif not is_companion(listed.name, stems):
            unknown.append(listed.name)
    return Listing(tuple(kept), tuple(unknown))


def is_readable(name: str, source: Source) -> bool:
    """Whether a file has a format that some loader reads, or is an archive."""
    path = PurePosixPath(name)
    return source.format is not None or format_of(path) is not None or is_archive(path)


def is_excluded(relative: str, source: Source) -> bool:
    """Whether a file below the source's root matches one of the patterns that the source leaves out."""
    return any(
        fnmatch.fnmatchcase(relative, pattern) or fnmatch.fnmatchcase(PurePosixPath(relative).name, pattern)
        for pattern in source.exclude
    )


def is_companion(name: str, stems: Iterable[str]) -> bool:
    """Whether a file is a part of one of the Shapefiles with these stems."""
    return any(name.lower().endswith(suffix) and name[: -len(suffix)] in stems for suffix in COMPANIONS)


def is_mixed(pattern: str) -> bool:
    """Whether a pattern leaves the suffix open, so that it meets files that nobody meant."""
    suffix = PurePosixPath(pattern).suffix
    return not suffix or glob.has_magic(suffix)


def _list_local(source: Source, declaration: CorpusDeclaration) -> tuple[list[Listed], str, bool]:
    path = source.path
    assert path is not None
    parts = path.parts
    wild = next((number for number, part in enumerate(parts) if glob.has_magic(part)), None)
    if wild is not None:
        root = Path(*parts[:wild])
        _check_listable(root, deep=len(parts) - wild > 1)
        mixed = is_mixed(path.name)
        # A pattern such as `**` also meets folders; one whose name looks like a file is left for the loader to refuse.
        matches = [
            match
            for match in sorted(root.glob(str(Path(*parts[wild:]))))
            if not _is_hidden(match, root)
            and not (match.is_dir() and (mixed or not (format_of(match) or is_archive(match))))
        ]
        return [_listed(match, root, declaration) for match in matches], _name(root, root, declaration), mixed
    if not path.exists():
        if path.is_symlink():
            raise SourceError("the source is a link to nothing", where=str(path))
        raise SourceError("the source is not there", where=str(path), do="check the path, or that it is mounted")
    if not path.is_dir():
        return [_listed(path, None, declaration)], "", False
    if source.format or format_of(path):
        raise SourceError("the source is a folder where a file is meant", where=str(path), do=f"write {path.name}/*")
    _check_listable(path, deep=True)
    found = [item for item in sorted(path.rglob("*")) if item.is_file() and not _is_hidden(item, path)]
    return [_listed(item, path, declaration) for item in found], _name(path, path, declaration), True


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


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


def _listed(path: Path, root: Path | None, declaration: CorpusDeclaration) -> Listed:
    try:
        status = path.stat()
        stamp = f"{status.st_size} {status.st_mtime_ns}"
    except OSError:  # a link to nothing: the loader says so
        stamp = ""
    return Listed(_name(path, root, declaration), str(path), stamp, path=path)


def _name(path: Path, root: Path | None, declaration: CorpusDeclaration) -> str:
    """Name a file: relative to the declaration's folder where it lies below it, else from its root on.

    A file declared by itself (no root) and outside the folder is named by its name alone.
    """
    folder = declaration.file.parent if declaration.file else None
    if folder is not None and path.is_relative_to(folder):
        return path.relative_to(folder).as_posix()
    if root is None:
        return path.name
    return root.name if path == root else f"{root.name}/{path.relative_to(root).as_posix()}"
