"""What an operator sees of a report, a check and an error."""

from __future__ import annotations

import dagster as dg

from georag_assets.components.results import failure, materialize_result
from georag_assets.errors import WriterBusyError
from georag_assets.reports import CheckResult, StageReport

REPORT = StageReport(
    corpus="ava",
    stage="documents",
    data_version="0123abcd",
    counts={"documents": 184, "quarantined": 2},
    seconds={"plan": 0.01, "sync": 1.5},
    checks=(
        CheckResult("one", True, True, "fine", {"share": 0.5}),
        CheckResult("two", False, False, "odd", detail={"rows": ["a"]}, severity="WARN"),
    ),
    snapshot_id=2**60,
    metadata={"quarantined": ["a.md: not UTF-8"], "by_kind": {"encoding": 2}, "previous": None, "mrr": 0.61},
)


def test_numbers_stay_numbers_and_keep_their_names() -> None:
    metadata = materialize_result(REPORT).metadata
    assert metadata is not None
    assert metadata["quarantined"] == dg.MetadataValue.int(2)
    assert metadata["quarantined_shown"] == dg.MetadataValue.json(["a.md: not UTF-8"])
    assert metadata["mrr"] == dg.MetadataValue.float(0.61)
    assert metadata["seconds"] == dg.MetadataValue.float(1.51)
    assert "previous" not in metadata


def test_the_content_decides_the_data_version() -> None:
    assert materialize_result(REPORT).data_version == dg.DataVersion("0123abcd")


def test_the_table_is_shown_without_a_click() -> None:
    metadata = materialize_result(REPORT).metadata
    assert metadata is not None
    table = str(metadata["summary"].value)  # type: ignore[union-attr]
    assert len(table) < 1000
    assert "| documents | 184 |" in table
    assert "failed: two" in table


def test_checks_keep_severity_and_evidence() -> None:
    _, two = materialize_result(REPORT).check_results
    assert not two.passed
    assert two.severity is dg.AssetCheckSeverity.WARN
    assert two.metadata["detail"] == dg.MetadataValue.json({"rows": ["a"]})


def test_an_error_is_not_retried_and_says_what_to_do() -> None:
    shown = failure(WriterBusyError("corpus ava is being written by pid 7", do="wait until that run ends"))
    assert shown.allow_retries is False
    assert shown.description == "corpus ava is being written by pid 7; do: wait until that run ends"
    assert shown.metadata["kind"].value == "WriterBusyError"
