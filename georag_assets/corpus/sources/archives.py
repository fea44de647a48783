"""Archives (.zip, .tar and its compressed forms, .gz of one file): their members brought out one at a time, safely.

What belongs here: which members there are, what makes one unusable, the bounds on unpacking. What does not: reading a
member (the loaders). A member is named `<archive>!/<member>`.

A name that leaves the folder, a link, a device, an archive in an archive, an encrypted member: each is quarantined with
its reason and never unpacked. What unpacks to more than the declared bound stops the sync: were it cut off instead, the
members after it would look removed.
"""

from __future__ import annotations

import gzip
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO, cast

from georag_assets.corpus.declaration import (
    TEXT_FORMATS,
    CorpusDeclaration,
    Source,
    archive_kind,
    format_of,
    is_archive,
)
from georag_assets.corpus.sources.listing import is_companion, is_excluded, is_readable
from georag_assets.corpus.sources.loader import Rejection, SourceFile, UnusableError
from georag_assets.errors import SourceError

_BLOCK = 2**20
# A member that unpacks to this many times its packed size, and to more than the floor, was made to fill a disk.
MOST_RATIO = 500
RATIO_FLOOR = 64 * 2**20
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, OSError)


@dataclass(slots=True)
class Unpacked:
    """What came out of the archives of a sync so far: how many bytes, and the names of members of no known format."""

    bytes: int = 0
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    packed: int
    fault: tuple[str, str] | None
    open: Callable[[], IO[bytes]]


def members(
    path: Path, name: str, source: Source, declaration: CorpusDeclaration, unpacked: Unpacked
) -> Iterator[SourceFile | Rejection]:
    """Yield the files of an archive, in the archive's order, each as a passing copy that is deleted after its use.

    Parameters
    ----------
    path, name
        Where the archive lies, and its stable name inside the corpus.
    unpacked
        Is added to: all archives of a sync share one bound.

    Raises
    ------
    SourceError
        The archive is damaged, or unpacks to more than `max_archive_mb`.
    """
    with _opened(path, name) as found:
        stems = {member.name[:-4] for member in found if member.name.lower().endswith(".shp")}
        for member in found:
            label = f"{name}!/{member.name}"
            if is_excluded(member.name, source):
                continue
            if member.fault is not None:
                yield Rejection(label, label, label, *member.fault)
                continue
            if is_companion(member.name, stems) or _is_hidden(member.name):
                continue
            if is_archive(PurePosixPath(member.name)):
                yield Rejection(label, label, label, "nested_archive", "an archive in an archive is not opened")
                continue
            if not _is_meant(member.name, source):
                unpacked.unknown.append(label)
                continue
            if (fault := _too_large(member, declaration)) is not None:
                yield Rejection(label, label, label, *fault)
                continue
            with tempfile.TemporaryDirectory(prefix="georag-member-") as folder:
                target = Path(folder) / PurePosixPath(member.name).name
                stem = member.name[:-4]
                parts = [part for part in found if is_companion(part.name, {stem})] if stem in stems else []
                try:
                    _copy(member, target, label, declaration, unpacked)
                    for part in parts:
                        if part.fault is None:
                            beside = target.with_name(PurePosixPath(part.name).name)
                            _copy(part, beside, label, declaration, unpacked)
                except UnusableError as error:
                    yield Rejection(label, label, label, error.kind, error.reason)
                    continue
                yield SourceFile(target, label)


@contextmanager
def decompressed(
    path: Path, name: str, declaration: CorpusDeclaration, unpacked: Unpacked
) -> Iterator[SourceFile | Rejection]:
    """Give the one file inside a `.gz`, as a passing copy; it keeps the name of the `.gz` in the corpus."""
    with tempfile.TemporaryDirectory(prefix="georag-member-") as folder:
        target = Path(folder) / path.with_suffix("").name
        member = _Member(target.name, 0, path.stat().st_size, None, lambda: cast("IO[bytes]", gzip.GzipFile(path)))
        try:
            _copy(member, target, name, declaration, unpacked)
        except UnusableError as error:
            yield Rejection(name, name, name, error.kind, error.reason)
            return
        yield SourceFile(target, name)


def _is_text(name: str) -> bool:
    return format_of(PurePosixPath(name)) in TEXT_FORMATS.values()


@contextmanager
def _opened(path: Path, name: str) -> Iterator[list[_Member]]:
    with ExitStack() as stack:
        try:
            if archive_kind(path) == "zip":
                archive = stack.enter_context(zipfile.ZipFile(path))
                found = [_of_zip(archive, info) for info in archive.infolist() if not info.is_dir()]
            else:
                tar = stack.enter_context(tarfile.open(path, "r:*"))
                found = [_of_tar(tar, info) for info in tar.getmembers() if not info.isdir()]
        except _DAMAGED as error:
            raise _damaged(name, error) from error
        yield found


def _of_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    fault = _unsafe(info.filename)
    kind = info.external_attr >> 28
    if fault is None and kind not in (0, 8):  # Unix types: 8 is a regular file, 10 a link
        fault = ("not_a_file", "a link or a device, not a file")
    if fault is None and info.flag_bits & 1:
        fault = ("encrypted", "the member is encrypted; unpack it and declare the file")
    return _Member(info.filename, info.file_size, info.compress_size, fault, lambda: archive.open(info))


def _of_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    fault = _unsafe(info.name)
    if fault is None and not info.isfile():
        fault = ("not_a_file", "a link or a device, not a file")

    def open_member() -> IO[bytes]:
        stream = tar.extractfile(info)
        assert stream is not None
        return stream

    return _Member(info.name.removeprefix("./"), info.size, 0, fault, open_member)


def _unsafe(name: str) -> tuple[str, str] | None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\0" in name:
        return "unsafe_name", "the member's name leads out of the archive"
    return None


def _is_hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith(".") and part not in (".", "..") for part in parts) or "__MACOSX" in parts


def _is_meant(name: str, source: Source) -> bool:
    """Whether the source reads this member: any of a known format, or those of the declared one."""
    known = format_of(PurePosixPath(name))
    if source.format is None:
        return is_readable(name, source)
    return known == source.format or (known is None and source.format in TEXT_FORMATS.values())


def _too_large(member: _Member, declaration: CorpusDeclaration) -> tuple[str, str] | None:
    limit = int(declaration.max_document_mb * 2**20)
    if _is_text(member.name) and member.size > limit:
        return "too_large", f"{member.size:,} bytes; max_document_mb allows {limit:,}"
    if member.packed and member.size > RATIO_FLOOR and member.size > MOST_RATIO * member.packed:
        return "suspicious", f"{member.packed:,} bytes that unpack to {member.size:,}: made to fill a disk?"
    return None


def _copy(member: _Member, target: Path, label: str, declaration: CorpusDeclaration, unpacked: Unpacked) -> None:
    """Write a member out, counting what really comes: the sizes that an archive states may be lies.

    Raises
    ------
    UnusableError
        A member that is one document is damaged, or larger than a document may be.
    SourceError
        One that holds many is damaged, or all together are over the bound.
    """
    bound = int(declaration.max_archive_mb * 2**20)
    limit = int(declaration.max_document_mb * 2**20) if _is_text(member.name) else None
    written = 0
    try:
        with member.open() as stream, target.open("wb") as out:
            while block := stream.read(_BLOCK):
                written += len(block)
                unpacked.bytes += len(block)
                if limit is not None and written > limit:
                    raise UnusableError("too_large", f"unpacks to more than {limit:,} bytes (max_document_mb)")
                if unpacked.bytes > bound:
                    raise SourceError(
                        "the archives unpack to more than is allowed",
                        where=label,
                        expected=f"{bound:,} bytes in all (max_archive_mb)",
                        do="declare a larger max_archive_mb, or unpack them yourself",
                    )
                out.write(block)
    except _DAMAGED as error:
        if limit is not None:
            raise UnusableError("damaged", f"damaged or cut off: {type(error).__name__} {str(error)[:200]}") from error
        raise _damaged(label, error) from error


def _damaged(label: str, error: Exception) -> SourceError:
    return SourceError(
        "the archive is damaged or cut off",
        where=label,
        found=f"{type(error).__name__}: {str(error)[:200]}",
        do="copy it again",
    )
