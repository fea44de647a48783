"""The record of one geometry literal found in text; the kinds that find them are in `geometry.kinds`."""

from __future__ import annotations

from dataclasses import dataclass

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
