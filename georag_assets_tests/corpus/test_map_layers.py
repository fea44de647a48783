"""Map layers as records: GeoJSON, GeoPackage, Shapefile, KML and GML, with the frame that each file states."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import geopandas
import pytest
import shapely

from georag_assets.corpus.models import DOCUMENTS, Document
from georag_assets.errors import SourceError
from georag_assets.home import Home
from georag_assets_tests.corpus.sources import declared, documents, quarantined, synced

LAKES = ("lakes.gpkg", "lakes.shp", "lakes.kml", "lakes.gml", "lakes.geojson", "lakes.geojson.gz")
POINT = '{"type": "Point", "coordinates": [7, 46]}'
FEATURE = f'{{"type": "Feature", "id": "a", "properties": {{"body": "x"}}, "geometry": {POINT}}}'


def records(path: str, **source: object) -> list[dict[str, object]]:
    return [{"path": path, "columns": {"id": "id", "text": ["body"]}, **source}]


def wells(path: Path, crs: int | str | None = 2056, **options: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    points = [shapely.Point(2600000, 1200000), shapely.Point(2600100, 1200000)]
    geopandas.GeoDataFrame({"id": ["a", "b"], "body": ["one", "two"]}, geometry=points, crs=crs).to_file(
        path, **options
    )
    return path


def only(home: Home) -> Document:
    (document,) = documents(home).values()
    return document


def point(document: Document) -> tuple[float, float]:
    assert document.geometry_wkb is not None
    found = shapely.from_wkb(document.geometry_wkb)
    return found.x, found.y


@pytest.fixture(scope="module")
def lakes(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Natural Earth's lakes (public domain) as GDAL writes them, a file per format."""
    folder = tmp_path_factory.mktemp("lakes")
    layer = geopandas.read_parquet(shared / "data" / "gazetteer" / "ne_50m_lakes.parquet")
    layer = layer[layer.geometry.is_valid][["name", "geometry"]].dropna().head(60)
    layer.insert(0, "number", range(1, len(layer) + 1))
    for name in LAKES[:-1]:
        layer.to_file(folder / name, driver="KML" if name == "lakes.kml" else None)
    (folder / LAKES[-1]).write_bytes(gzip.compress((folder / "lakes.geojson").read_bytes()))
    layer.to_parquet(folder / "lakes.parquet")
    return folder


@pytest.mark.shared
@pytest.mark.parametrize("name", LAKES)
def test_real_lakes_are_the_same_in_every_format(home: Home, lakes: Path, name: str) -> None:
    title = "Name" if name == "lakes.kml" else "name"  # KML has its own word for it
    columns = {"id": "number", "title": title, "text": [title]}
    synced(home, declared(lakes, [{"path": name, "columns": columns}]))
    found = documents(home)
    layer = geopandas.read_parquet(lakes / "lakes.parquet").set_index("number")
    assert set(found) == {str(identity) for identity in layer.index}
    for identity, row in layer.iterrows():
        document = found[str(identity)]
        assert document.text == row["name"]
        assert document.geometry_epsg == 4326 or name.startswith("lakes.geojson")
        assert document.geometry_wkb is not None
        assert shapely.equals_exact(shapely.from_wkb(document.geometry_wkb), row.geometry, tolerance=1e-6)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["02_a", "appendix_03_c", "appendix_06"])
def test_the_examples_of_the_geojson_draft(home: Home, shared: Path, name: str) -> None:
    path = shared / "data" / "geojson_draft" / f"js__example_{name}.geojson"
    if json.loads(path.read_text())["type"] not in ("Feature", "FeatureCollection"):
        with pytest.raises(SourceError, match=r"holds no features.*format: text"):
            synced(home, declared(path.parent, records(path.name)))
    synced(home, declared(path.parent, [{"path": path.name, "format": "text"}], name="as_text"))
    assert [row["text"] for row in home.tables.read("as_text", DOCUMENTS).to_pylist()] == [path.read_text()]


def test_geojson_members_wherever_they_stand(home: Home, tmp_path: Path) -> None:
    crs = '"crs": {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::2056"}}'
    far = FEATURE.replace("[7, 46]", "[2600000, 1200000]")
    (tmp_path / "late.geojson").write_text(f'{{"features": [{far}], {crs}, "type": "FeatureCollection"}}')
    synced(home, declared(tmp_path, records("late.geojson")))
    assert (only(home).geometry_epsg, point(only(home))) == (2056, (2600000, 1200000))
    assert "urn:ogc:def:crs:EPSG::2056" in str(only(home).geometry_evidence)


def test_a_feature_without_geometry_and_a_single_feature(home: Home, tmp_path: Path) -> None:
    (tmp_path / "a.geojson").write_text(FEATURE.replace(POINT, "null"))
    synced(home, declared(tmp_path, records("a.geojson")))
    assert only(home).geometry_wkb is None
    assert only(home).geometry_flags == ()


def test_members_that_are_no_features_are_quarantined(home: Home, tmp_path: Path) -> None:
    members = f"[{FEATURE}, 7, {POINT}]"
    (tmp_path / "a.geojson").write_text(f'{{"type": "FeatureCollection", "features": {members}}}')
    synced(home, declared(tmp_path, records("a.geojson")))
    assert list(documents(home)) == ["a"]
    assert {kind for kind, _ in quarantined(home).values()} == {"not_geojson"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"type": "FeatureCollection", "features": null}', "no list of features"),
        ('{"type": "FeatureCollection"}', "no list of features"),
        ('{"type": "Topology"}', "holds no features"),
        (f'{{"type": "FeatureCollection", "features": [{FEATURE}', "damaged"),
        (f'{{"type": "FeatureCollection", "features": [], "x": {"[" * 100_000}{"]" * 100_000}}}', "nested too deep"),
        ('{"type": "FeatureCollection", "crs": {"type": "link"}, "features": []}', "frame that has no EPSG code"),
    ],
)
def test_a_geojson_file_that_is_none(home: Home, tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.geojson").write_text(content)
    with pytest.raises(SourceError, match=words):
        synced(home, declared(tmp_path, records("a.geojson")))


def test_the_frame_of_a_shapefile_is_its_prj(home: Home, tmp_path: Path) -> None:
    path = wells(tmp_path / "wells.shp")
    synced(home, declared(tmp_path, records("wells.shp")))
    found = documents(home)["a"]
    assert (found.geometry_epsg, point(found)) == (2056, (2600000, 1200000))
    assert found.geometry_evidence == "wells.prj: EPSG:2056 CH1903+ / LV95"
    path.with_suffix(".prj").rename(tmp_path / "wells.PRJ")
    synced(home, declared(tmp_path, records("wells.shp"), name="upper"))
    assert home.tables.read("upper", DOCUMENTS).to_pylist()[0]["geometry_epsg"] == 2056


@pytest.mark.parametrize(("prj", "said"), [(None, "wells.prj is not there"), ("", "wells.prj states no frame")])
def test_a_shapefile_without_a_frame_says_so(home: Home, tmp_path: Path, prj: str | None, said: str) -> None:
    path = wells(tmp_path / "wells.shp")
    path.with_suffix(".prj").unlink()
    if prj is not None:
        path.with_suffix(".prj").write_text(prj)
    synced(home, declared(tmp_path, records("wells.shp")))
    found = documents(home)["a"]
    assert (found.geometry_epsg, found.geometry_evidence) == (None, said)


def test_a_declared_frame_stands_in_for_a_missing_one(home: Home, tmp_path: Path) -> None:
    wells(tmp_path / "wells.shp").with_suffix(".prj").unlink()
    synced(home, declared(tmp_path, records("wells.shp"), frame={"epsg": 2056}))
    found = documents(home)["a"]
    assert (found.geometry_epsg, found.geometry_evidence) == (2056, "declared frame of the corpus")


def test_a_prj_that_is_cut_off_is_refused(home: Home, tmp_path: Path) -> None:
    prj = wells(tmp_path / "wells.shp").with_suffix(".prj")
    prj.write_text(prj.read_text()[:60])
    with pytest.raises(SourceError, match=r"frame that the map layer states.*wells\.prj"):
        synced(home, declared(tmp_path, records("wells.shp")))


def test_a_shapefile_that_is_not_whole(home: Home, tmp_path: Path) -> None:
    wells(tmp_path / "wells.shp").with_suffix(".dbf").unlink()
    with pytest.raises(SourceError, match=r"not whole.*wells\.dbf"):
        synced(home, declared(tmp_path, records("wells.shp")))


def test_the_layer_of_a_geopackage_is_declared(home: Home, tmp_path: Path) -> None:
    wells(tmp_path / "a.gpkg", layer="wells")
    wells(tmp_path / "a.gpkg", crs=None, layer="unknown")
    with pytest.raises(SourceError, match=r"several layers.*wells, unknown"):
        synced(home, declared(tmp_path, records("a.gpkg")))
    with pytest.raises(SourceError, match=r"no layer 'well'.*wells, unknown"):
        synced(home, declared(tmp_path, records("a.gpkg", layer="well")))
    synced(home, declared(tmp_path, records("a.gpkg", layer="wells")))
    assert documents(home)["a"].geometry_epsg == 2056


@pytest.mark.parametrize("name", ["wells.gpkg", "wells.kml", "wells.gml"])
def test_a_layer_that_is_cut_off_is_refused(home: Home, tmp_path: Path, name: str) -> None:
    path = wells(tmp_path / "whole" / name, **({"crs": 4326, "driver": "KML"} if name == "wells.kml" else {}))
    (tmp_path / name).write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SourceError, match="cannot be read"):
        synced(home, declared(tmp_path, records(name)))


def gml(*geometries: str) -> str:
    members = "".join(
        f"<gml:featureMember><w:well><w:geom>{geometry}</w:geom><w:id>{number}</w:id><w:body>x</w:body></w:well>"
        "</gml:featureMember>"
        for number, geometry in enumerate(geometries)
    )
    return f'<w:FeatureCollection xmlns:w="http://w" xmlns:gml="http://www.opengis.net/gml">{members}</w:FeatureCollection>'


def gml_point(name: str, position: str) -> str:
    return f'<gml:Point srsName="{name}"><gml:pos>{position}</gml:pos></gml:Point>'


@pytest.mark.parametrize(
    ("name", "position", "epsg", "expected"),
    [
        ("urn:ogc:def:crs:EPSG::4326", "46.0 7.0", 4326, (7, 46)),
        ("urn:ogc:def:crs:OGC:1.3:CRS84", "7.0 46.0", 4326, (7, 46)),
        ("EPSG:4326", "7.0 46.0", 4326, (7, 46)),
        ("urn:ogc:def:crs:EPSG::27700", "613504 307860", 27700, (613504, 307860)),
        ("urn:ogc:def:crs:EPSG::3035", "2765662.61 4246337.44", 3035, (4246337.44, 2765662.61)),
    ],
)
def test_the_axis_order_of_gml(
    home: Home, tmp_path: Path, name: str, position: str, epsg: int, expected: tuple[float, float]
) -> None:
    (tmp_path / "a.gml").write_text(gml(gml_point(name, position)))
    synced(home, declared(tmp_path, records("a.gml")))
    assert (only(home).geometry_epsg, point(only(home))) == (epsg, pytest.approx(expected))
    assert [item.name for item in tmp_path.glob("a.*")] == ["a.gml"]


def test_gml_in_several_frames_is_refused_and_an_unknown_one_is_told(home: Home, tmp_path: Path) -> None:
    both = gml(gml_point("EPSG:4326", "7 46"), gml_point("EPSG:2056", "2600000 1200000"))
    (tmp_path / "a.gml").write_text(both)
    with pytest.raises(SourceError, match=r"several frames.*EPSG:4326 from line 1; EPSG:2056"):
        synced(home, declared(tmp_path, records("a.gml")))
    (tmp_path / "a.gml").write_text(gml(gml_point("EPSG:99999999", "7 46")))
    synced(home, declared(tmp_path, records("a.gml")))
    assert only(home).geometry_evidence == "layer well of a.gml states EPSG:99999999, which is no known frame"


@pytest.mark.shared
@pytest.mark.parametrize("identity", ["b33", "b35", "b36"])
def test_gml_of_bug_reports(
    home: Home, tmp_path: Path, case: Callable[[str], dict[str, object]], identity: str
) -> None:
    from georag_assets.frames.project import to_wgs84

    record = case(identity)
    expected = record["expected"]
    assert isinstance(expected, dict)
    (tmp_path / "a.gml").write_text(gml(str(record["input"])))
    synced(home, declared(tmp_path, records("a.gml")))
    document = only(home)
    assert document.geometry_wkb is not None
    assert document.geometry_epsg is not None
    shape, _, _ = to_wgs84(shapely.from_wkb(document.geometry_wkb), document.geometry_epsg)
    if "bbox_lonlat" in expected:
        assert shape.bounds == pytest.approx(expected["bbox_lonlat"])
    else:
        assert shape.bounds[:2] == pytest.approx(expected["lonlat"], abs=max(expected["tol"], 1e-6))


@pytest.mark.shared
def test_the_prj_of_a_bug_report(home: Home, tmp_path: Path, case: Callable[[str], dict[str, object]]) -> None:
    wkt = str(case("c19")["input"]).partition(" with row")[0]
    frame = geopandas.GeoDataFrame({"id": ["a"], "body": ["x"]}, geometry=[shapely.Point(7.44, 46.95)], crs=4326)
    frame.to_file(tmp_path / "a.shp")
    (tmp_path / "a.prj").write_text(wkt)
    synced(home, declared(tmp_path, records("a.shp")))
    assert (only(home).geometry_epsg, point(only(home))) == (4326, pytest.approx((7.44, 46.95)))


def kml(coordinates: str) -> str:
    return (
        '<kml xmlns="http://www.opengis.net/kml/2.2"><Document><Placemark><name>x</name><LineString><coordinates>'
        f"{coordinates}</coordinates></LineString></Placemark></Document></kml>"
    )


@pytest.mark.shared
@pytest.mark.parametrize("identity", ["b23", "b24", "b25"])
def test_kml_coordinates_of_bug_reports(
    home: Home, tmp_path: Path, case: Callable[[str], dict[str, object]], identity: str
) -> None:
    record = case(identity)
    given, expected = record["input"], record["expected"]
    assert isinstance(given, dict)
    assert isinstance(expected, dict)
    (tmp_path / "a.kml").write_text(kml(given["kml_coordinates"]))
    synced(home, declared(tmp_path, [{"path": "a.kml", "columns": {"id": "fid", "text": ["Name"]}}]))
    document = only(home)
    if document.geometry_wkb is None:
        assert document.geometry_flags == ("empty_geometry",)
        return
    found = shapely.get_coordinates(shapely.from_wkb(document.geometry_wkb)).tolist()
    wanted = expected.get("if_repaired") or [[7.1, 46.1], [7.2, 46.2], [7.3, 46.3]]
    assert found == [pytest.approx(vertex[:2]) for vertex in wanted]


def test_a_geometry_that_is_not_finite_is_flagged(home: Home, tmp_path: Path) -> None:
    (tmp_path / "a.kml").write_text(kml("nan,1 nan,2").replace("LineString", "Point").replace(" nan,2", ""))
    report = synced(home, declared(tmp_path, [{"path": "a.kml", "columns": {"id": "fid", "text": ["Name"]}}]))
    assert (only(home).geometry_wkb, only(home).geometry_flags) == (None, ("empty_geometry",))
    assert report.metadata["geometry_flags"] == {"empty_geometry": 1}
