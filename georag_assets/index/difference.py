"""What an index build can take over from an earlier one, so that one changed document does not cost a whole build.

What belongs here: choosing the earlier build, and which points differ from it. What does not: writing them
(`engine_writer`, `columns`) and the order of making a build (`builds`).

Two builds of one identity differ only where a chunk's id or its document's content differs, and in the version that
every point names. Measured at 11 k points: copying the engine 0.06 s, renaming the version of all points 0.2 s, against
5 s of writing them again. The engine keeps deleted points until it merges a segment, so a chain of such builds ends
with a whole one after `MOST_DRIFT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georag_assets.corpus.models import CHUNKS
from georag_assets.errors import GeoragError
from georag_assets.home import Home
from georag_assets.index import folders
from georag_assets.index import manifest as manifests
from georag_assets.index.checks import OWN
from georag_assets.index.manifest import Manifest

# Shares of a build's points: beyond these it is written whole.
MOST_CHANGED: Final = 0.1
MOST_DRIFT: Final = 0.2
REPLACED: Final = "replaced"


@dataclass(frozen=True)
class Difference:
    """An earlier build and what is other in the new one.

    Attributes
    ----------
    written
        Chunks to write: new ones, and those whose document says something else of them now.
    gone
        Chunks of the earlier build that are no more, or are written again.
    replaced
        Points written or deleted since the last build that was written whole, these included.
    """

    base: Manifest
    folder: Path
    written: frozenset[str]
    gone: tuple[str, ...]
    replaced: int


def difference(
    home: Home, corpus: str, identity: str, snapshots: Mapping[str, int], unfit: frozenset[str]
) -> Difference | None:
    """Return what to take from the newest sound build of the same identity; None where a whole one is to be written."""
    base = _base(home, corpus, identity)
    if base is None or base.counts.get("unfit") or unfit:
        return None
    try:
        before = contents_of(home, corpus, base.snapshots[CHUNKS.name])
        now = contents_of(home, corpus, snapshots[CHUNKS.name])
    except (GeoragError, KeyError):  # its snapshot has expired
        return None
    written = frozenset(chunk for chunk, content in now.items() if before.get(chunk) != content)
    gone = tuple(sorted(chunk for chunk, content in before.items() if now.get(chunk) != content))
    replaced = base.counts.get(REPLACED, 0) + len(written) + len(gone)
    points = max(1, len(now))
    if len(written) + len(gone) > MOST_CHANGED * points or replaced > MOST_DRIFT * points:
        return None
    return Difference(base, folders.build_folder(home, corpus, base.build), written, gone, replaced)


def _base(home: Home, corpus: str, identity: str) -> Manifest | None:
    for found in reversed(folders.complete_builds(home, corpus)):
        failed = any(check.blocking and not check.passed for check in found.checks if check.name in OWN)
        if found.identity == identity and not failed:
            try:
                return manifests.verify(folders.build_folder(home, corpus, found.build))
            except GeoragError:
                continue
    return None


def contents_of(home: Home, corpus: str, snapshot: int) -> dict[str, str]:
    """Return chunk id -> content hash of its document, of the chunks at a snapshot."""
    table = home.tables.read(corpus, CHUNKS, columns=["chunk_id", "content_sha256"], snapshot_id=snapshot)
    return dict(zip(table["chunk_id"].to_pylist(), table["content_sha256"].to_pylist(), strict=True))
