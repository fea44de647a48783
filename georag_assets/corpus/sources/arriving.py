"""A listed file as the files that loaders read: brought here, taken out of its archive, and gone again after its use.

What belongs here: the order of those steps. What does not: each of them (`remote`, `archives`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from georag_assets.corpus.declaration import CorpusDeclaration, Source, is_archive, is_packed
from georag_assets.corpus.sources.archives import Unpacked, decompressed, members
from georag_assets.corpus.sources.listing import Listed
from georag_assets.corpus.sources.loader import Rejection, SourceFile


def arriving(
    listed: Listed, source: Source, declaration: CorpusDeclaration, unpacked: Unpacked
) -> Iterator[SourceFile | Rejection]:
    """Yield what a listed file holds to read, one at a time; a copy is deleted when the next is asked for.

    Raises
    ------
    SourceError
        The file cannot be brought here, or is a damaged archive.
    """
    if listed.path is not None:
        yield from _unpacking(listed.path, listed.name, source, declaration, unpacked)
        return
    from georag_assets.corpus.sources.remote import fetch

    with tempfile.TemporaryDirectory(prefix="georag-source-") as folder:
        path = fetch(source, listed, Path(folder))
        yield from _unpacking(path, listed.name, source, declaration, unpacked)


def _unpacking(
    path: Path, name: str, source: Source, declaration: CorpusDeclaration, unpacked: Unpacked
) -> Iterator[SourceFile | Rejection]:
    if not path.is_file():
        yield SourceFile(path, name)  # the loader says what it is instead
    elif is_archive(PurePosixPath(path.name)):
        yield from members(path, name, source, declaration, unpacked)
    elif is_packed(PurePosixPath(path.name)):
        with decompressed(path, name, declaration, unpacked) as item:
            yield item
    else:
        yield SourceFile(path, name)
