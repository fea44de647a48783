"""Kinds of geometry literals, one class each in its own module; `KINDS` is the registry, in order of precedence.

A new kind is a class with `name` and `find` (see `kind.LiteralKind`) and its place in this tuple. What an earlier kind
takes is not shown to a later one.
"""

from georag_assets.geometry.kinds.bbox import BoundingBox
from georag_assets.geometry.kinds.decimal import DecimalDegrees
from georag_assets.geometry.kinds.dms import DegreesMinutesSeconds, LetteredDegrees
from georag_assets.geometry.kinds.geojson import GeoJson
from georag_assets.geometry.kinds.kind import LiteralKind
from georag_assets.geometry.kinds.table import CoordinateTable
from georag_assets.geometry.kinds.wkt import WellKnownText

KINDS: tuple[LiteralKind, ...] = (
    GeoJson(),
    WellKnownText(),
    BoundingBox(),
    CoordinateTable(),
    DegreesMinutesSeconds(),
    LetteredDegrees(),
    DecimalDegrees(),
)
