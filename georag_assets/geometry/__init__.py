"""Geometry: literals in text, extents, regions, geodesic distance. Pure functions of coordinates; no frames, no IO."""
