"""Every public bug report that this part of the work answers for is named by a test."""

from __future__ import annotations

import json
import re
from pathlib import Path

ANSWERED = {"d", "g"}
ALSO = {"r32", "r42", "o11", *(f"o{n}" for n in (*range(21, 25), *range(27, 35), *range(38, 41)))}


def test_every_case_has_a_test_that_names_it(shared: Path) -> None:
    lines = (shared / "cases" / "cases_open.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    wanted = {record["id"] for record in records if record["family"] in ANSWERED or record["id"] in ALSO}
    tests = Path(__file__).resolve().parent.parent.rglob("test_*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in tests if path != Path(__file__).resolve())
    named = set(re.findall(r"(?<![A-Za-z0-9])([a-z]\d{2})(?![A-Za-z0-9])", text))
    assert sorted(wanted - named) == []
