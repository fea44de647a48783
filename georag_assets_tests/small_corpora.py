"""Corpora small enough to be built whole in a test: a folder of Markdown and its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Each text has words of its own and a place of its own, so that a question finds one of them.
PLACES = {
    "weir": ("The weir was raised in 1961 after the winter floods.", 7.59, 47.56),
    "quarry": ("The limestone quarry closed when its northern face slid.", 8.31, 47.05),
    "gauge": ("A gauge at the footbridge has read the river level since 1974.", 8.54, 47.37),
    "orchard": ("Old cherry orchards cover the terrace above the village.", 7.75, 47.48),
    "tunnel": ("The railway tunnel crosses a fault full of groundwater.", 8.73, 46.53),
    "marsh": ("Peat in the marsh is four metres deep and drains slowly.", 8.55, 47.15),
}


def texts() -> dict[str, str]:
    """Return document name -> Markdown, each with a point in EWKT."""
    return {
        f"{name}.md": f"# The {name}\n\n{text}\n\nIt lies at SRID=4326;POINT ({lon} {lat}).\n"
        for name, (text, lon, lat) in PLACES.items()
    }


def declare(folder: Path, name: str, *, documents: Mapping[str, str] | None = None, extra: str = "") -> Path:
    """Write a corpus below a folder of declarations; return its own folder."""
    corpus = folder / name
    (corpus / "docs").mkdir(parents=True)
    for file, text in (texts() if documents is None else documents).items():
        (corpus / "docs" / file).write_text(text, encoding="utf-8")
    (corpus / "defs.yaml").write_text(
        "type: georag_assets.components.Corpus\n"
        f"attributes:\n  name: {name}\n  sources: [docs/*.md]\n  licence: CC0-1.0\n{extra}",
        encoding="utf-8",
    )
    return corpus
