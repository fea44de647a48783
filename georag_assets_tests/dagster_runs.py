"""Running the shipped definitions in a test: fresh definitions over a folder, a home of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from georag_assets.components import HomeResource
from georag_assets.definitions import build_defs
from georag_assets.home import Home


def definitions(declarations: Path, home: Home) -> dg.Definitions:
    """Return definitions over a folder of declarations whose runs write the given home."""
    return build_defs({"georag_home": HomeResource(root=str(home.root))}, declarations=declarations)


def build(
    defs: dg.Definitions, corpus: str, instance: dg.DagsterInstance, config: dict[str, Any] | None = None
) -> dg.ExecuteInProcessResult:
    """Run the corpus's job in this process, as a user's run does, and return what happened without raising."""
    return defs.resolve_job_def(f"build_{corpus}").execute_in_process(
        instance=instance, run_config=config, raise_on_error=False
    )


def failure_of(result: dg.ExecuteInProcessResult) -> tuple[str, str]:
    """Return the step that failed first and the description that the UI shows."""
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            shown = data.user_failure_data.description if data.user_failure_data else data.error.message
            return str(event.step_key), str(shown)
    raise AssertionError("no step failed")
