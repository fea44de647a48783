"""The state of a corpus's sources, cheaply: whether anything there has changed since it was last read.

What belongs here: one hash over names, sizes and times, or what a remote store says of a file (its ETag). What does
not: contents (`documents` hashes those, and decides what is new).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from georag_assets.corpus.declaration import CorpusDeclaration
from georag_assets.corpus.sources import list_source


def source_state(declaration: CorpusDeclaration) -> str:
    """Return a hash that changes when a source file, the sidecar or the declaration does; reads no contents.

    Raises
    ------
    SourceError
        A source's root is absent or cannot be listed.
    """
    digest = hashlib.sha256(declaration.model_dump_json().encode())
    for source in declaration.sources:
        for file in list_source(source, declaration).files:
            digest.update(f"{file.where}\0{file.stamp}\n".encode())
    for path in _sidecar(declaration):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _sidecar(declaration: CorpusDeclaration) -> list[Path]:
    sidecar = declaration.geometry.sidecar if declaration.geometry else None
    return [sidecar] if sidecar is not None and sidecar.exists() else []
