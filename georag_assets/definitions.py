"""The one Definitions object that Dagster loads.

What belongs here: which declarations are loaded, and what holds for all of them. What does not: what a corpus is
(`components`), what is declared (`defs`).

`GEORAG_DECLARATIONS` names another folder of `*/defs.yaml`, loaded instead of the package's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

import georag_assets.defs
from georag_assets.components import Corpus
from georag_assets.corpus.declaration import load_declarations
from georag_assets.settings import Settings

OWN_DECLARATIONS = Path(georag_assets.defs.__file__).parent


def build_defs(
    resource_overrides: Mapping[str, object] | None = None, *, declarations: Path | str | None = None
) -> dg.Definitions:
    """Return fresh definitions, so that a test overrides a resource and patches nothing.

    Parameters
    ----------
    resource_overrides
        Resources by key that replace the loaded ones.
    declarations
        Folder of `*/defs.yaml`; by default the setting's, else the package's own.

    Raises
    ------
    DeclarationError
        Lists every bad file at once; Dagster's own loader stops at the first.
    """
    folder = Path(declarations or Settings().declarations or OWN_DECLARATIONS)
    declared = load_declarations(folder)
    if folder == OWN_DECLARATIONS:
        loaded = _own_definitions()
    else:
        loaded = dg.Definitions.merge(*(dg.build_defs_for_component(Corpus(each)) for each in declared.values()))
    return dg.Definitions(
        assets=loaded.assets,
        asset_checks=loaded.asset_checks,
        jobs=loaded.jobs,
        sensors=loaded.sensors,
        schedules=loaded.schedules,
        resources={**(loaded.resources or {}), **(resource_overrides or {})},
        # Ad-hoc runs from the UI too: seven small steps take 17 s in processes of their own, 3 s in one.
        executor=dg.in_process_executor if Settings().executor == "in_process" else dg.multiprocess_executor,
        metadata=loaded.metadata,
    )


def _own_definitions() -> dg.Definitions:
    """Load the package's `defs` as Dagster's own loader would, but without a project file: it may be installed."""
    with warnings.catch_warnings():
        # The loader warns of its own beta parts once per asset: forty lines before the first useful one.
        warnings.simplefilter("ignore", dg.BetaWarning)
        warnings.simplefilter("ignore", dg.PreviewWarning)
        tree = dg.ComponentTree.from_module(georag_assets.defs, project_root=OWN_DECLARATIONS.parent.parent)
        return tree.build_defs()


defs = build_defs()
