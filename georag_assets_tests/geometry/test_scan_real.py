"""The scanner on real texts, beside answers that others made."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import shapely

from georag_assets.geometry.scan import scan

pytestmark = pytest.mark.shared


def test_every_shape_of_the_wkt_fixtures_is_read(shared: Path) -> None:
    lines = (shared / "data/wkt_wkb/example-wkt.tsv").read_text(encoding="utf-8").splitlines()
    literals = [line.split("\t")[-1] for line in lines[1:]]
    read = 0
    for literal in filter(lambda text: text.strip().endswith((")", "EMPTY")), literals):
        (found,) = scan(literal)
        assert found.literal == literal.strip()
        assert found.geometry is not None
        assert found.geometry.equals(shapely.force_2d(shapely.from_wkt(literal)))
        read += 1
    assert read > 100


def test_gauss_krueger_tables_have_every_printed_point(shared: Path) -> None:
    folder = shared / "data/laws"
    for line in (folder / "truth.jsonl").read_text(encoding="utf-8").splitlines():
        truth = json.loads(line)
        if "n_points" not in truth:
            continue
        text = (folder / truth["file"]).read_text(encoding="utf-8")
        shapes = [each.geometry for each in scan(text) if each.kind == "coordinate_table"]
        points = shapely.get_coordinates(shapes)
        assert len(points) == truth["n_points"], truth["file"]
        assert ((points[:, 0] > 2e6) & (points[:, 0] < 6e6) & (points[:, 1] > 5e6)).all()  # easting first


def test_points_with_hemispheres_lie_in_the_law_s_box(shared: Path) -> None:
    folder = shared / "data/laws"
    compared = 0
    for line in (folder / "truth.jsonl").read_text(encoding="utf-8").splitlines():
        truth = json.loads(line)
        if "n_lat" not in truth:
            continue
        text = (folder / truth["file"]).read_text(encoding="utf-8")
        # The truth was read with the sign "°" alone; the Estonian law has as many points with "º".
        found = [each for each in scan(text) if each.kind == "dms" and each.geometry is not None]
        points = [each.geometry for each in found if "º" not in each.literal and "\u00a0" not in each.literal]
        if not points:
            continue
        west, south, east, north = shapely.total_bounds(points)
        box = truth["bbox_wgs84"]
        assert box[0] - 1e-4 <= west, truth["file"]
        assert box[1] - 1e-4 <= south, truth["file"]
        assert east <= box[2] + 1e-4, truth["file"]
        assert north <= box[3] + 1e-4, truth["file"]
        compared += 1
    assert compared >= 8


def test_wiktor_prose_points_are_found(shared: Path) -> None:
    found = wanted = 0
    with gzip.open(shared / "data/wiktor/wiktor.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if not record.get("prose_point"):
                continue
            wanted += 1
            latitude, longitude = record["prose_point"]
            there = shapely.Point(longitude, latitude)
            shapes = [each.geometry for each in scan(record["text"]) if each.geometry is not None]
            found += any(shape.distance(there) < 0.01 for shape in shapes)
    assert wanted > 400
    assert found / wanted >= 0.97
