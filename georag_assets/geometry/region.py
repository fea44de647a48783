"""A region to search in: a shape or a radius, on a round earth.

What belongs here: the region's boxes, its exact predicate and its distances. What does not: how a place name or a
question becomes a region (`places`, `retrieval`) and how a store filters by it (`index.filter`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shapely.geometry.base import BaseGeometry


@dataclass(frozen=True)
class Region:
    """Where to search.

    Attributes
    ----------
    shape
        EPSG:4326, lon/lat, unwrapped (longitudes may exceed 180 where the shape crosses the antimeridian); the centre
        point itself for a radius search.
    radius_m
        Geodesic metres around `shape` (0: the shape itself).
    label
        How it was asked for ("bbox -122,38,-121,39", "Napa Valley (ava)").
    flags
        `radius_raised_to_floor`, `wrapped_box_over_180`, `closed_ring`, `split_at_antimeridian`, ...
    """

    shape: BaseGeometry
    radius_m: float = 0.0
    label: str = ""
    flags: tuple[str, ...] = ()
