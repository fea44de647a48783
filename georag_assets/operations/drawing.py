"""Small drawings as SVG: a map of extents, bars, a line over time, as images that stand inside Markdown.

What belongs here: numbers to SVG, and to a data URI. What does not: which numbers (`pictures`). Coordinates are
longitude and latitude in WGS 84, drawn plate carrée: a degree is as long in both directions.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import shapely
from shapely.geometry.base import BaseGeometry

Extents = npt.NDArray[np.float64]
"""Rows of west, south, east, north in degrees of WGS 84; east may be over 180."""

INLINE_LIMIT = 1_000
"""Characters of Markdown that Dagster's UI shows as they are; more hides behind a link."""

_BLUE, _LAND = "#36c", "#ddd"
_SMALL = (240, 120)
_LARGE = (1_000, 500)
_DRAWN_EXTENTS = 1_500
_LEAST_SPAN = 0.02
_SAFE = "/:=,;'?!*+-._~@&$"


@dataclass(frozen=True, slots=True)
class View:
    """The part of the world that a map shows, twice as wide as high, and its size in pixels."""

    west: float
    south: float
    span: float
    width: int

    @classmethod
    def around(cls, extents: Extents, width: int) -> View:
        """Return the view that holds all extents with a margin of a tenth."""
        west, south = extents[:, 0].min(), extents[:, 1].min()
        east, north = extents[:, 2].max(), extents[:, 3].max()
        span = min(max(east - west, 2 * (north - south), _LEAST_SPAN) * 1.2, 360.0)
        middle = (west + east) / 2, min(max((south + north) / 2, -90 + span / 4), 90 - span / 4)
        return cls(float(middle[0] - span / 2), float(middle[1] - span / 4), float(span), width)

    def pixels(self, degrees: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return x (to the right) and y (downwards) of longitudes and latitudes, shape (n, 2)."""
        scale = self.width / self.span
        return np.column_stack(
            ((degrees[:, 0] - self.west) * scale, self.width / 2 - (degrees[:, 1] - self.south) * scale)
        )


def small_map(extents: Extents, words: str) -> str:
    """Return Markdown of at most `INLINE_LIMIT` characters: where the extents' centres lie, the more the darker."""
    view = View.around(extents, _SMALL[0])
    for cells, tolerance in (
        (40, 2),
        (40, 4),
        (30, 4),
        (24, 4),
        (24, 6),
        (16, 4),
        (16, 6),
        (16, 10),
        (12, 10),
        (8, 10),
    ):
        land = f"<path fill='{_LAND}' d='{_land_path(view, tolerance)}'/>"
        markdown = _image(_svg(_SMALL, land + _density(extents, view, cells)), words)
        if len(markdown) <= INLINE_LIMIT:
            return markdown
    markdown = _image(_svg(_SMALL, _density(extents, view, 8)), words)
    return markdown if len(markdown) <= INLINE_LIMIT else words


def large_map(extents: Extents, words: str) -> str:
    """Return Markdown with every extent on its own over land and graticule, or `_DRAWN_EXTENTS` of them, evenly."""
    view = View.around(extents, _LARGE[0])
    chosen = extents
    if len(extents) > _DRAWN_EXTENTS:
        chosen = extents[np.linspace(0, len(extents) - 1, _DRAWN_EXTENTS).astype(int)]
        words = f"{words}; {_DRAWN_EXTENTS:,} of {len(extents):,} drawn"
    # Large ones first, so that small ones are seen upon them.
    chosen = chosen[np.argsort(-(chosen[:, 2] - chosen[:, 0]) * (chosen[:, 3] - chosen[:, 1]), kind="stable")]
    low, high = view.pixels(chosen[:, :2]), view.pixels(chosen[:, 2:])
    boxes = "".join(
        f"M{x:.0f},{y:.0f}h{max(right - x, 2):.0f}v{-max(y - top, 2):.0f}h{-max(right - x, 2):.0f}z"
        for (x, y), (right, top) in zip(low, high, strict=True)
    )
    drawn = (
        f"<path fill='{_LAND}' d='{_land_path(view, 0.7)}'/>{_graticule(view)}"
        f"<path fill='{_BLUE}' fill-opacity='.12' stroke='{_BLUE}' stroke-width='.7' d='{boxes}'/>"
    )
    return _image(_svg(_LARGE, drawn), words)


def bars(values: Sequence[tuple[str, float]], words: str) -> str:
    """Return Markdown of at most `INLINE_LIMIT` characters with a bar per value, its label under it."""
    highest = max((value for _, value in values), default=0) or 1
    width = _SMALL[0] / max(len(values), 1)
    columns = "".join(
        f"M{number * width:.0f},100v{-96 * value / highest:.0f}h{width - 2:.0f}V100"
        for number, (_, value) in enumerate(values)
    )
    every = math.ceil(len(values) / 6) if values else 1
    labels = "".join(
        f"<text x='{number * width:.0f}' y='114'>{_escaped(label)}</text>"
        for number, (label, _) in enumerate(values)
        if number % every == 0
    )
    drawn = f"<path fill='{_BLUE}' d='{columns}'/><g font-size='11' fill='#888'>{labels}</g>"
    markdown = _image(_svg(_SMALL, drawn), words)
    return markdown if len(markdown) <= INLINE_LIMIT else words


def line(values: Sequence[float], words: str) -> str:
    """Return Markdown with a line through values, oldest first, from their lowest to their highest."""
    low, high = min(values), max(values)
    step = _SMALL[0] / max(len(values) - 1, 1)
    height = high - low or 1
    points = " ".join(
        f"{number * step:.0f},{38 - 34 * (value - low) / height:.0f}" for number, value in enumerate(values)
    )
    return _image(
        _svg((_SMALL[0], 40), f"<polyline fill='none' stroke='{_BLUE}' stroke-width='2' points='{points}'/>"), words
    )


def histogram(values: npt.NDArray[np.float64], bins: int = 12) -> list[tuple[str, float]]:
    """Return how many values lie in each of equally wide bins, labelled by the bin's lower edge."""
    if not len(values):
        return []
    counts, edges = np.histogram(values, bins=bins)
    return [(f"{edge:,.0f}", float(count)) for edge, count in zip(edges, counts, strict=False)]


def _density(extents: Extents, view: View, cells: int) -> str:
    """Return three paths of cells, light to dark: a third of the cells that hold a centre in each."""
    centres = view.pixels((extents[:, :2] + extents[:, 2:]) / 2)
    size = view.width / cells
    columns = np.clip((centres[:, 0] // size).astype(int), 0, cells - 1)
    rows = np.clip((centres[:, 1] // size).astype(int), 0, cells // 2 - 1)
    counts = np.zeros((cells // 2, cells), dtype=int)
    np.add.at(counts, (rows, columns), 1)
    held = counts[counts > 0]
    edges = np.quantile(held, [1 / 3, 2 / 3]) if len(held) else [0, 0]
    levels = np.where(counts == 0, 0, 1 + (counts > edges[0]) + (counts > edges[1]))
    paths = []
    for level, opacity in ((1, ".4"), (2, ".7"), (3, "1")):
        runs = "".join(
            f"M{start * size:.0f},{(row + 0.5) * size:.0f}h{length * size:.0f}"
            for row in range(cells // 2)
            for start, length in _runs(levels[row] == level)
        )
        if runs:
            paths.append(f"<path opacity='{opacity}' d='{runs}'/>")
    return f"<g stroke='{_BLUE}' stroke-width='{size:.0f}'>{''.join(paths)}</g>"


def _runs(row: npt.NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
    return [(int(start), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


@cache
def _land() -> BaseGeometry:
    """Return Natural Earth's countries at 1:110 million (public domain) as one shape, three turns of the world wide."""
    with resources.as_file(resources.files("georag_assets.places") / "data" / "ne_110m_admin0.parquet") as file:
        countries = pq.read_table(file, columns=["geometry"])["geometry"].to_numpy()
    land = shapely.union_all(shapely.make_valid(shapely.from_wkb(countries)))
    turns = [shapely.transform(land, lambda xy, turn=turn: xy + np.array([turn, 0])) for turn in (-360, 0, 360)]
    return shapely.union_all(turns)


def _land_path(view: View, tolerance: float) -> str:
    """Return the land in view as a path; `tolerance` is in pixels."""
    seen = shapely.clip_by_rect(_land(), view.west, view.south, view.west + view.span, view.south + view.span / 2)
    pixel = view.span / view.width
    seen = shapely.simplify(seen, tolerance * pixel)
    parts = []
    for polygon in shapely.get_parts(shapely.get_parts(seen)):
        if polygon.geom_type != "Polygon" or polygon.area < (3 * tolerance * pixel) ** 2:
            continue
        pixels = np.rint(view.pixels(shapely.get_coordinates(polygon.exterior))).astype(int)
        if len(np.unique(pixels, axis=0)) > 2:
            steps = np.diff(pixels[:-1], axis=0)
            parts.append(f"M{pixels[0, 0]},{pixels[0, 1]}l" + " ".join(f"{x},{y}" for x, y in steps) + "z")
    return "".join(parts).replace(" -", "-").replace(",-", "-")


def _graticule(view: View) -> str:
    step = next(step for step in (0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60) if view.span / step <= 12)
    drawn = []
    for longitude in np.arange(math.ceil(view.west / step) * step, view.west + view.span, step):
        x = view.pixels(np.array([[longitude, 0.0]]))[0, 0]
        drawn.append(
            f"<path d='M{x:.0f},0V500'/><text x='{x + 2:.0f}' y='496'>{(longitude + 180) % 360 - 180:g}</text>"
        )
    for latitude in np.arange(math.ceil(view.south / step) * step, view.south + view.span / 2, step):
        y = view.pixels(np.array([[0.0, latitude]]))[0, 1]
        drawn.append(f"<path d='M0,{y:.0f}H1000'/><text x='2' y='{y - 2:.0f}'>{latitude:g}</text>")
    return f"<g stroke='#999' stroke-width='.4' font-size='12'>{''.join(drawn)}</g>"


def _svg(size: tuple[int, int], content: str) -> str:
    width, height = size
    return f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'>{content}</svg>"


def _image(svg: str, words: str) -> str:
    """Return Markdown of an image and words under it, in the shorter of the two encodings of a data URI."""
    plain = quote(svg, safe=_SAFE)
    coded = ";base64," + base64.b64encode(svg.encode()).decode()
    shorter = min("," + plain, coded, key=len)
    return f"![]({'data:image/svg+xml'}{shorter})\n\n{words}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&apos;")
