"""Dagster components: one YAML file declares one corpus.

What belongs here: turning a declaration into assets, checks, a job, a sensor. What does not: the work they do (the
domain rooms) and what this installation declares (`defs`).
"""

from georag_assets.components.corpus import Corpus
from georag_assets.components.resources import HomeResource

__all__ = ["Corpus", "HomeResource"]
