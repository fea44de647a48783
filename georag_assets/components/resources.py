"""The resource that gives assets their home folder and keeps a corpus to one writer.

What belongs here: what a run holds from its first step to its last. What does not: where things lie in the home
(`home`) and how the lock works (`corpus.writer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import PrivateAttr

from georag_assets.corpus.shards import WHOLE, Shard
from georag_assets.corpus.writer import writing
from georag_assets.home import Home
from georag_assets.settings import Settings


class HomeResource(dg.ConfigurableResource[Any]):
    """The installation that assets read and write.

    The lock of a corpus is taken by its first step and released when the run ends, or by the kernel when the run's
    process dies; no pool or slot is left behind. Under the multiprocess executor each step is a process of its own,
    so the lock then spans a step.

    Attributes
    ----------
    root
        Home folder; empty means `GEORAG_HOME`.
    """

    root: str | None = None

    _held: dict[str, None] = PrivateAttr(default_factory=dict)
    _locks: ExitStack = PrivateAttr(default_factory=ExitStack)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[HomeResource]:
        """Release every lock when the run ends, however it ends."""
        with ExitStack() as self._locks:
            try:
                yield self
            finally:
                self._held.clear()

    def home(self) -> Home:
        """Return the home that settings (and `root`, where given) describe."""
        settings = Settings()
        return Home(settings if self.root is None else settings.model_copy(update={"home": Path(self.root)}))

    def hold(self, home: Home, corpus: str, shard: Shard = WHOLE) -> None:
        """Become the one writer of the corpus, or of its shard, until the run ends; again in the same run is nothing.

        Raises
        ------
        WriterBusyError
            Another process (or another run of this one) is writing the corpus or the shard.
        """
        held = f"{corpus} {shard.name}"
        if held not in self._held:
            self._locks.enter_context(writing(home, corpus, shard))
            self._held[held] = None


HOME = HomeResource()
"""The one default instance: definitions of several corpora merge only if they hold the same object."""
