"""A home whose gazetteers are built once for all tests of places."""

from __future__ import annotations

import pyarrow as pa
import pytest
import shapely
from shapely.geometry import box

from georag_assets.corpus.models import DOCUMENTS
from georag_assets.frames.models import FRAMES
from georag_assets.home import Home
from georag_assets.settings import Settings

VALLEY = box(-122.65, 38.2, -122.2, 38.85)


def put(home, corpus, features):
    """Write documents and frames as the stages do."""
    documents, frames = [], []
    for title, shape, feature_ids in features:
        documents.append(
            dict.fromkeys(DOCUMENTS.schema.names) | {"doc_id": title, "title": title, "feature_ids": feature_ids}
        )
        wkb = None if shape is None else shapely.to_wkb(shape)
        frames.append(
            dict.fromkeys(FRAMES.schema.names)
            | {"chunk_id": title, "doc_id": title, "geometry_origin": "document", "geometry_wkb": wkb}
        )
    for spec, rows in ((DOCUMENTS, documents), (FRAMES, frames)):
        ids = [row["doc_id"] for row in rows]
        home.tables.replace_rows(corpus, spec, key="doc_id", removed=ids, added=pa.Table.from_pylist(rows, spec.schema))


@pytest.fixture(scope="session")
def places_home(tmp_path_factory):
    home = Home(Settings(home=tmp_path_factory.mktemp("places") / "home"))
    put(
        home,
        "areas",
        [
            ("Napa Valley", VALLEY, ["napa_valley"]),
            ("Springfield", box(-90, 39, -89, 40), ["springfield"]),
            ("Roads of California", box(-125, 32, -114, 42), []),
            ("Nowhere in particular", None, ["nowhere"]),
        ],
    )
    return home
