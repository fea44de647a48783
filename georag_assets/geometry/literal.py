"""One geometry literal found in text, and its form in a table; the kinds that find them are in `geometry.kinds`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import shapely
from shapely.geometry.base import BaseGeometry


@dataclass(frozen=True, slots=True)
class GeometryLiteral:
    """A span of text that is a geometry.

    Attributes
    ----------
    start, end
        Code-point offsets in the document's text; `text[start:end] == literal`.
    kind
        `wkt`, `geojson`, `decimal_pair`, `decimal_list`, `dms`, `coordinate_table`, ... (the registry's names).
    geometry
        The shape in the literal's own frame, x/y = east/north or lon/lat order, Z and M dropped;
        None where the literal is malformed (an unclosed ring that cannot be read, NaN): then a flag says why.
    epsg
        Code stated inside the literal itself (SRID=, crs member), else None.
    geographic
        True where the notation can only be degrees (DMS, GeoJSON without crs).
    feature_id
        Id of the GeoJSON feature that the literal is, where it states one.
    flags
        E.g. `empty`, `has_z`, `has_m`, `axis_order_assumed`, `single_axis`, `elided`, `unreadable`; a literal that was
        clearly meant as a geometry and cannot be one is `malformed` beside its reason: `unclosed_ring`, `unclosed`
        (never closed before the text goes on), `non_finite`.
    """

    start: int
    end: int
    kind: str
    literal: str
    geometry: BaseGeometry | None
    epsg: int | None = None
    geographic: bool = False
    flags: tuple[str, ...] = ()
    feature_id: str | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the literal as the tables hold it, in JSON's types; the feature's id is the chunk's."""
        return {
            "start": self.start,
            "end": self.end,
            "kind": self.kind,
            "literal": self.literal,
            "wkt": None if self.geometry is None else self.geometry.wkt,
            "epsg": self.epsg,
            "geographic": self.geographic,
            "flags": list(self.flags),
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> GeometryLiteral:
        """Return the literal that a record holds."""
        return cls(
            record["start"],
            record["end"],
            record["kind"],
            record["literal"],
            shapely.from_wkt(record["wkt"]) if record["wkt"] else None,
            record["epsg"],
            record["geographic"],
            tuple(record["flags"]),
        )
