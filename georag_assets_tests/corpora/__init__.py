"""The corpora that tests and benchmarks declare over the folder of real data, and samples of them.

What belongs here: reading the declarations beside this file, and a declaration over a part of its documents. What does
not: what is expected of a corpus (`end_to_end.test_corpora`, `benchmarks.corpora`).
"""

from __future__ import annotations

import gzip
from collections.abc import Collection
from pathlib import Path

from georag_assets.corpus.declaration import CorpusDeclaration, Source, load_declarations
from georag_assets.corpus.sources import SourceFile, list_source

DECLARATIONS = Path(__file__).parent


def declared() -> dict[str, CorpusDeclaration]:
    """Return the corpora declared beside this file, by name."""
    return load_declarations(DECLARATIONS)


def sampled(
    declaration: CorpusDeclaration, folder: Path, *, every: int = 1, names: Collection[str] | None = None
) -> CorpusDeclaration:
    """Return the declaration over a part of its documents, laid into a folder; without its labelled queries.

    Parameters
    ----------
    every
        Of files that hold records, every so many lines are kept; of other files every so many.
    names
        Of files that hold no records, keep those of these names instead.
    """
    sources = []
    for number, source in enumerate(declaration.sources):
        files = [SourceFile(found.path, found.name) for found in list_source(source, declaration).files if found.path]
        if source.columns is None:
            kept = [file for file in files if file.path.name in names] if names is not None else files[::every]
        else:
            kept = files
        for file in kept:
            # A document is named after its source's root, which therefore stays as it is.
            place = folder / str(number) / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.columns is None:
                place.symlink_to(file.path)
            else:
                _thin(file.path, place, every)
        if kept:
            sources.append(_moved(source, folder / str(number), kept[0].name))
    return declaration.model_copy(update={"sources": tuple(sources), "evaluation": None})


def _moved(source: Source, folder: Path, name: str) -> Source:
    """Return the source over the folder; a pattern stays one, so that its files keep the names they had."""
    path = folder / Path(name).parent / source.path.name
    return source.model_copy(update={"path": path})


def _thin(source: Path, target: Path, every: int) -> None:
    """Copy every so many lines of a file of records."""
    opened = gzip.open if source.suffix == ".gz" else open
    with opened(source, "rb") as lines, opened(target, "wb") as kept:
        kept.writelines(line for number, line in enumerate(lines) if number % every == 0)
