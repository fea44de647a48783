"""A build's own columns, memory-mapped beside its manifest: who survives a filter, counted without the engine.

What belongs here: writing and opening the columns, the survivors of a `SearchFilter`, geometries by row. What does not:
the engine's filter (`filter`, `embedded`), the decision what to do with a count (`planner`).

The engine estimates a geo filter up to fifteen times too high; this count decides instead. Geometries are kept once
each (the chunks of one document share its polygon) as WKB in one file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray
from shapely.geometry import box

from georag_assets.errors import IndexBuildError
from georag_assets.geometry.region import Region
from georag_assets.index.filter import check_filter, shifted_ranges
from georag_assets.index.models import SearchFilter
from georag_assets.index.payload import EQUALS_FIELDS, INDEXED

EDGES = ("west", "south", "east", "north")
PERIOD = ("period_start", "period_end")
ID_BYTES = 36


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows that satisfy a filter exactly, and whether the loose payload filter lets through exactly the same ones."""

    rows: NDArray[np.int64]
    loose_count: int

    @property
    def payload_filter_is_exact(self) -> bool:
        """Whether boxes alone decide, so that no exact predicate has to follow the engine."""
        return self.loose_count == len(self.rows)


class ColumnsWriter:
    """Collects the columns while points stream to the engine; a few dozen bytes a point are held.

    Use: `for batch in writer.observing(batches)`, then `write_geometries`, then `finish`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=False)
        self._ids: list[NDArray[np.bytes_]] = []
        self._numbers: dict[str, list[NDArray[np.float64]]] = {name: [] for name in (*EDGES, *PERIOD)}
        self._codes: dict[str, list[NDArray[np.int32]]] = {name: [] for name in EQUALS_FIELDS}
        self._words: dict[str, dict[str, int]] = {name: {} for name in EQUALS_FIELDS}
        self._geometry_of: dict[bytes, int] = {}

    def carry(self, base: Columns, gone: Sequence[str], constant: Mapping[str, str]) -> None:
        """Take over the rows of an earlier build but for those that are gone; `constant` fields get one new value."""
        rows = np.setdiff1d(np.arange(base.count), base.rows_of(gone))
        self._ids.append(base.ids[rows])
        for name, kept in self._numbers.items():
            kept.append(np.asarray(base._edges[name][rows]))
        for name, codes in self._codes.items():
            if name in constant:
                self._words[name] = {constant[name]: 0}
                codes.append(np.zeros(len(rows), np.int32))
            else:
                self._words[name] = dict(base._words[name])
                codes.append(np.asarray(base._codes[name][rows]))

    def observing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they are, noting their columns."""
        for batch in batches:
            self.add(batch)
            yield batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Note one batch of points."""
        ids = np.array(batch.column("chunk_id").to_pylist(), dtype=f"S{ID_BYTES}")
        self._ids.append(ids)
        for name, kept in self._numbers.items():
            kept.append(batch.column(name).fill_null(np.nan).to_numpy(zero_copy_only=False))
        for name, codes in self._codes.items():
            words = self._words[name]
            values = batch.column(name).to_pylist()
            coded = [-1 if value is None else words.setdefault(str(value), len(words)) for value in values]
            codes.append(np.array(coded, dtype=np.int32))

    @cached_property
    def _all_ids(self) -> NDArray[np.bytes_]:
        return np.concatenate(self._ids) if self._ids else np.empty(0, dtype=f"S{ID_BYTES}")

    def write_geometries(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write (chunk_id, geometry_wkb) batches, each distinct geometry once; ids that are no point are left out."""
        ids = self._all_ids
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        geometry_of = np.full(len(ids), -1, dtype=np.int64)
        lengths: list[int] = []
        rectangles: list[bool] = []
        with (self.folder / "geometries.wkb").open("wb") as blob:
            for batch in batches:
                wanted = np.array(batch.column("chunk_id").to_pylist(), dtype=f"S{ID_BYTES}")
                place = np.searchsorted(ordered, wanted)
                for at, chunk_id, wkb in zip(place.tolist(), wanted, batch.column("geometry_wkb"), strict=True):
                    if at < len(ordered) and ordered[at] == chunk_id and wkb.is_valid:
                        row = order[at]
                        geometry_of[row] = self._keep(wkb.as_py(), int(row), blob, lengths, rectangles)
            blob.flush()
            os.fsync(blob.fileno())
        self._save("geometry_of", geometry_of)
        self._save("geometry_offsets", np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))
        self._save("geometry_is_extent", np.array(rectangles, dtype=bool))

    def _keep(self, wkb: bytes, row: int, blob: BinaryIO, lengths: list[int], rectangles: list[bool]) -> int:
        # The stored extent is part of the key: a geometry may stand for its extent only where both agree.
        extent = tuple(float(self._numbers_of(edge)[row]) for edge in EDGES)
        digest = hashlib.blake2b(wkb + repr(extent).encode(), digest_size=16).digest()
        known = self._geometry_of.get(digest)
        if known is not None:
            return known
        blob.write(wkb)
        lengths.append(len(wkb))
        rectangles.append(_is_extent(wkb, extent))
        self._geometry_of[digest] = len(lengths) - 1
        return len(lengths) - 1

    @cached_property
    def _joined(self) -> dict[str, NDArray[np.float64]]:
        return {name: np.concatenate(kept) if kept else np.empty(0) for name, kept in self._numbers.items()}

    def _numbers_of(self, name: str) -> NDArray[np.float64]:
        return self._joined[name]

    def _save(self, name: str, array: NDArray[Any]) -> None:
        path = self.folder / f"{name}.npy"
        np.save(path, array, allow_pickle=False)
        with path.open("rb") as written:
            os.fsync(written.fileno())

    def finish(self) -> int:
        """Write what is left and return the number of rows; without `write_geometries` there are no geometries."""
        distinct = len(np.unique(self._all_ids))
        if distinct != len(self._all_ids):
            repeated = len(self._all_ids) - distinct
            raise IndexBuildError(f"{repeated} chunk ids were written twice", where=str(self.folder))
        if not (self.folder / "geometry_of.npy").exists():
            self.write_geometries(())
        self._save("ids", self._all_ids)
        for name in (*EDGES, *PERIOD):
            self._save(name, self._numbers_of(name))
        for name, codes in self._codes.items():
            self._save(f"code_{name}", np.concatenate(codes) if codes else np.empty(0, np.int32))
        (self.folder / "words.json").write_text(json.dumps(self._words, ensure_ascii=False), encoding="utf-8")
        return len(self._all_ids)


def _is_extent(wkb: bytes, extent: tuple[float, ...]) -> bool:
    """Whether a geometry is exactly its stored extent: a point, or a rectangle along the axes."""
    if len(wkb) > 128 or not np.isfinite(extent).all():
        return False
    geometry = shapely.from_wkb(wkb)
    if tuple(geometry.bounds) != extent:
        return False
    if geometry.geom_type == "Point":
        return True
    corners = geometry.geom_type == "Polygon" and shapely.get_num_coordinates(geometry) == 5
    return bool(corners and geometry.equals(box(*extent)))


class Columns:
    """The columns of one build, read only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._words: dict[str, dict[str, int]] = json.loads((folder / "words.json").read_text(encoding="utf-8"))
            self.ids: NDArray[np.bytes_] = self._load("ids")
            self._edges = {name: self._load(name) for name in (*EDGES, *PERIOD)}
            self._codes = {name: self._load(f"code_{name}") for name in EQUALS_FIELDS}
            self._geometry_of = self._load("geometry_of")
            self._offsets = self._load("geometry_offsets")
            self._is_extent = self._load("geometry_is_extent")
            wkb = folder / "geometries.wkb"
            self._wkb = np.memmap(wkb, dtype=np.uint8, mode="r") if wkb.stat().st_size else np.empty(0, np.uint8)
        except (OSError, ValueError, KeyError) as error:
            raise IndexBuildError("a build's columns cannot be read", where=str(folder), found=str(error)) from error
        if len({len(self.ids), *(len(column) for column in self._edges.values()), len(self._geometry_of)}) != 1:
            raise IndexBuildError("a build's columns differ in length", where=str(folder))
        self._decoded: NDArray[np.object_] = np.full(max(len(self._offsets) - 1, 0), None, dtype=object)

    @classmethod
    def open(cls, folder: Path) -> Columns:
        """Open a build's columns; raises `IndexBuildError` where they do not verify."""
        return cls(folder)

    @classmethod
    def write(cls, folder: Path, points: Iterable[pa.RecordBatch], geometries: Iterable[pa.RecordBatch]) -> Columns:
        """Write columns of points that go to no engine, and open them."""
        writer = ColumnsWriter(folder)
        for batch in points:
            writer.add(batch)
        writer.write_geometries(geometries)
        writer.finish()
        return cls(folder)

    def _load(self, name: str) -> NDArray[Any]:
        loaded: NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return loaded

    def close(self) -> None:
        """Let go of the mapped files; the object is not used again."""
        self.__dict__.clear()

    def __enter__(self) -> Columns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.ids)

    @cached_property
    def located(self) -> NDArray[np.bool_]:
        """Rows with an extent."""
        mask: NDArray[np.bool_] = np.isfinite(self._edges["west"])
        return mask

    @cached_property
    def extents(self) -> NDArray[np.float64]:
        """Return (n, 4) west, south, east, north; NaN rows have none."""
        return np.column_stack([self._edges[edge] for edge in EDGES])

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.ids, kind="stable")

    @cached_property
    def _ordered_ids(self) -> NDArray[np.bytes_]:
        return self.ids[self._order]

    def rows_of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id; -1 where there is none."""
        wanted = np.array(list(ids), dtype=f"S{ID_BYTES}")
        if not self.count or not len(wanted):
            return np.full(len(wanted), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self._ordered_ids, wanted), self.count - 1)
        return np.where(self._ordered_ids[place] == wanted, self._order[place], -1)

    def ids_of(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        """Return the ids of rows."""
        return tuple(self.ids[rows].astype(f"U{ID_BYTES}").tolist())

    def words(self, field: str, rows: NDArray[np.int64]) -> list[str | None]:
        """Return a keyword field's value at each row; None where the point has none."""
        spelt = list(self._words[field])
        return [spelt[code] if code >= 0 else None for code in self._codes[field][rows].tolist()]

    def present(self, field: str) -> int:
        """Count the points that have an indexed payload field: what the field's index must cover."""
        if field not in INDEXED:
            raise KeyError(field)
        if field in self._codes:
            return int(np.count_nonzero(self._codes[field] >= 0))
        if field in PERIOD:
            return int(np.count_nonzero(np.isfinite(self._edges[field])))
        return self.count if field == "has_geometry" else int(np.count_nonzero(self.located))

    def survivors(self, where: SearchFilter) -> NDArray[np.int64]:
        """Return the rows that satisfy the filter exactly."""
        return self.select(where).rows

    def select(self, where: SearchFilter) -> Selection:
        """Return the rows that satisfy the filter exactly, and how many its boxes alone let through."""
        check_filter(where)
        mask = self._scalar_mask(where)
        if where.region is None:
            rows = np.arange(self.count) if mask is None else np.flatnonzero(mask)
            return Selection(rows, len(rows))
        loose = self._loose_mask(where.region)
        if mask is not None:
            loose &= mask
        rows = np.flatnonzero(loose)
        return Selection(rows[self._covered(where.region, rows)], len(rows))

    def _scalar_mask(self, where: SearchFilter) -> NDArray[np.bool_] | None:
        masks: list[NDArray[np.bool_]] = []
        if where.located is not None and where.region is None:
            masks.append(self.located if where.located else ~self.located)
        if where.period is not None:
            start, end = where.period
            masks += [self._edges["period_start"] < end, self._edges["period_end"] > start]
        for field, value in where.equals.items():
            masks.append(self._codes[field] == self._words[field].get(str(value), -2))
        return np.logical_and.reduce(masks) if masks else None

    def _loose_mask(self, region: Region) -> NDArray[np.bool_]:
        west, south, east, north = (self._edges[edge] for edge in EDGES)
        mask = np.zeros(self.count, dtype=bool)
        for part in region.boxes():
            latitudes = (south <= part.north + 1e-9) & (north >= part.south - 1e-9)
            for lowest_east, highest_west in shifted_ranges(part):
                mask |= latitudes & (west <= highest_west) & (east >= lowest_east)
        return mask

    def _covered(self, region: Region, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Apply the exact predicate, to each distinct geometry once.

        Where the region is a rectangle and the geometry is its own extent, or the extent lies within the rectangle,
        comparing numbers is the exact predicate, and decodes nothing.
        """
        passed = np.zeros(len(rows), dtype=bool)
        undecided = np.ones(len(rows), dtype=bool)
        rectangle = _rectangle(region)
        geometry = self._geometry_of[rows]
        if rectangle is not None:
            plain = np.zeros(len(rows), dtype=bool)
            with_geometry = geometry >= 0
            plain[with_geometry] = self._is_extent[geometry[with_geometry]]
            meets, inside, at_pole = self._against(rectangle, rows)
            plain &= ~at_pole
            passed = inside | (plain & meets)
            undecided = ~(passed | plain)
        undecided &= geometry >= 0
        if undecided.any():
            distinct, back = np.unique(geometry[undecided], return_inverse=True)
            passed[undecided] = region.covers_any(self._decode(distinct))[back]
        return passed

    def _against(
        self, rectangle: tuple[float, float, float, float], rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        west, south, east, north = (self._edges[edge][rows] for edge in EDGES)
        low_west, low_south, high_east, high_north = rectangle
        meets = np.zeros(len(rows), dtype=bool)
        inside = np.zeros(len(rows), dtype=bool)
        for shift in (-360.0, 0.0, 360.0):
            meets |= (west <= high_east + shift) & (east >= low_west + shift)
            inside |= (west >= low_west + shift) & (east <= high_east + shift)
        meets &= (south <= high_north) & (north >= low_south)
        # A pole is one point at every longitude: numbers do not decide there.
        at_pole = (north >= min(high_north, 90.0)) & (high_north >= 90.0)
        at_pole |= (south <= max(low_south, -90.0)) & (low_south <= -90.0)
        return meets, inside & (south >= low_south) & (north <= high_north), at_pole

    def _decode(self, geometries: NDArray[np.int64]) -> NDArray[np.object_]:
        wanted = [index for index in geometries.tolist() if self._decoded[index] is None]
        if wanted:
            offsets = self._offsets
            blobs = [self._wkb[offsets[index] : offsets[index + 1]].tobytes() for index in wanted]
            self._decoded[wanted] = shapely.from_wkb(blobs)
        return self._decoded[geometries]

    def geometries(self, rows: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the geometry of each row, EPSG:4326; None where it has none."""
        index = self._geometry_of[rows]
        found = np.full(len(rows), None, dtype=object)
        found[index >= 0] = self._decode(index[index >= 0])
        return found


def _rectangle(region: Region) -> tuple[float, float, float, float] | None:
    """Return the region's bounds where it is a rectangle along the axes, no wider than the world; else None."""
    shape = region.shape
    if region.radius_m > 0 or shape.geom_type != "Polygon" or shapely.get_num_coordinates(shape) != 5:
        return None
    west, south, east, north = shape.bounds
    return (west, south, east, north) if shape.equals(box(west, south, east, north)) else None
