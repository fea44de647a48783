"""How a search is answered: exactly below a limit, through the graph above it, never with fewer results than there are.

What belongs here: the decision by the build's own count of survivors, the tie group at the cut, asking again. What does
not: the filter's forms (`filter`), fusion and ranking (`retrieval`).

Measured at 200 k points: tight filters are answered exactly by any engine, the middle (1.5 to 37 %) collapses to a
recall of 0.4 to 0.65 because the engine's estimate, not its count, chooses the plan. Ids of the survivors are the
cheapest exact filter to about 3 k, payload conditions beyond; ACORN with a wide beam holds 0.98 to 0.99 above 30 k.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from georag_assets.errors import QueryError
from georag_assets.index.columns import Columns, Selection
from georag_assets.index.filter import Condition, Ids, fields_of, is_broad, payload_condition
from georag_assets.index.models import DenseQuery, Hit, LexicalQuery, PlanSettings, SearchFilter, SearchReport
from georag_assets.index.store import (
    Capabilities,
    Effort,
    IndexCoverage,
    Payload,
    Query,
    Store,
    StoreInfo,
    check_vector,
)

# Share of points over which four ranges are cheaper than size classes.
RANGES_ABOVE = 0.005

PlanName = Literal["exact_ids", "exact_filter", "graph", "empty"]


@dataclass(frozen=True, slots=True)
class CompiledSearch:
    """What the store will be asked: the condition travels inside the vector query."""

    plan: PlanName
    form: str
    condition: Condition | None
    effort: Effort
    selection: Selection

    @property
    def survivors(self) -> int:
        """Number of points that satisfy the filter exactly."""
        return len(self.selection.rows)


class PlannedSearch:
    """Searches one store by the counts of its build's columns."""

    def __init__(self, store: Store, columns: Columns, settings: PlanSettings | None = None) -> None:
        self.store = store
        self.columns = columns
        self.settings = settings or PlanSettings()
        self._last: tuple[SearchFilter, Selection, dict[str, Condition]] | None = None

    def compile(self, query: Query, where: SearchFilter) -> CompiledSearch:
        """Decide how a query is answered, without asking the store."""
        selection = self._selection(where)
        survivors = len(selection.rows)
        form = self._payload_form(where, survivors)
        if not survivors:
            return CompiledSearch("empty", "none", payload_condition(where, form=form), Effort(), selection)
        if not self.settings.enabled:
            return CompiledSearch("graph", form, payload_condition(where, form=form), Effort(exact=False), selection)
        everything = survivors == self.columns.count
        # The engine's own filter is loose where the region is no rectangle: then only ids are exact.
        inexact = not selection.payload_filter_is_exact
        few = survivors <= self.settings.ids_limit and not everything
        small = survivors <= self.settings.exact_limit or isinstance(query, LexicalQuery)
        if few or (small and inexact):
            return self._by_ids(selection)
        condition = payload_condition(where, form=form)
        if small:
            return CompiledSearch("exact_filter", form if condition else "none", condition, Effort(), selection)
        effort = Effort(exact=False, ef=self.settings.ef, acorn=condition is not None)
        return CompiledSearch("graph", form if condition else "none", condition, effort, selection)

    def search(self, query: Query, where: SearchFilter, limit: int) -> SearchReport:
        """Return the best `limit` points that satisfy the filter, ties by chunk id.

        The tie group at the cut is fetched whole, so that the top k is the beginning of the top K.
        """
        if limit < 1:
            raise QueryError("nothing was asked for", expected="limit >= 1", found=str(limit))
        if isinstance(query, DenseQuery):
            check_vector(query.vector, self.store.dimension)
        compiled = self.compile(query, where)
        if compiled.plan == "empty":
            return SearchReport((), 0, "empty", form=compiled.form)
        hits = self._ask(query, compiled, limit)
        asked_again = False
        if self.settings.enabled and isinstance(query, DenseQuery) and len(hits) < min(limit, compiled.survivors):
            asked_again = True
            compiled = self._by_ids(compiled.selection)
            hits = self._ask(query, compiled, limit)
        return SearchReport(tuple(hits), compiled.survivors, compiled.plan, asked_again, compiled.form)

    def _payload_form(self, where: SearchFilter, survivors: int) -> str:
        if where.region is None:
            return "fields"
        tight = survivors <= RANGES_ABOVE * self.columns.count and not is_broad(where.region.boxes())
        return "classes" if tight else "ranges"

    def _selection(self, where: SearchFilter) -> Selection:
        """Return the survivors; the arms of one search ask with the same filter, one after the other."""
        last = self._last
        if last is None or last[0] is not where:
            self._last = last = (where, self.columns.select(where), {})
        return last[1]

    def _ids_of(self, selection: Selection) -> Condition:
        last = self._last
        if last is None or last[1] is not selection:
            return Ids(self.columns.ids_of(selection.rows))
        if "ids" not in last[2]:
            last[2]["ids"] = Ids(self.columns.ids_of(selection.rows))
        return last[2]["ids"]

    def _by_ids(self, selection: Selection) -> CompiledSearch:
        everything = len(selection.rows) == self.columns.count
        condition = None if everything else self._ids_of(selection)
        form = "none" if everything else "ids"
        return CompiledSearch("exact_filter" if everything else "exact_ids", form, condition, Effort(), selection)

    def _ask(self, query: Query, compiled: CompiledSearch, limit: int) -> list[Hit]:
        """Ask until `limit` survivors and their whole tie group at the cut are there, or there is no more to get."""
        loose = (
            compiled.condition is not None and compiled.form != "ids" and not compiled.selection.payload_filter_is_exact
        )
        most = compiled.selection.loose_count if loose else compiled.survivors
        wanted = min(limit + 1, most)
        if loose:
            # Boxes let in more than the exact predicate: ask for as many more as their counts differ.
            wanted = min(int(np.ceil(wanted * most / compiled.survivors * 1.2)) + 10, most)
        while True:
            found = self.store.search(query, compiled.condition, wanted, compiled.effort)
            hits = self._surviving(found, compiled.selection) if loose else found
            hits.sort(key=lambda hit: (-hit.score, hit.chunk_id))
            complete = len(hits) > limit and hits[limit].score < hits[limit - 1].score
            exhausted = len(found) < wanted or wanted >= most
            if complete or exhausted:
                return hits[:limit]
            wanted = min(wanted * 4, most)

    def _surviving(self, hits: list[Hit], selection: Selection) -> list[Hit]:
        rows = self.columns.rows_of([hit.chunk_id for hit in hits])
        passed = np.isin(rows, selection.rows, assume_unique=False)
        return [hit for hit, keep in zip(hits, passed.tolist(), strict=True) if keep]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it reached a store."""

    condition: Condition | None
    limit: int
    effort: Effort

    @property
    def fields(self) -> frozenset[str]:
        """Payload fields that the condition reads; `id` for a filter by ids."""
        return fields_of(self.condition)


@dataclass
class RecordingStore:
    """A store that notes what reaches it: what the plan proves, seen from the engine's side.

    A filter that is applied after the search leaves `condition` None or without the region's fields here.
    """

    inner: Store
    asked: list[Asked] = field(default_factory=list)

    @property
    def dimension(self) -> int:
        """Dimension of the dense vectors."""
        return self.inner.dimension

    @property
    def capabilities(self) -> Capabilities:
        """What the inner store has."""
        return self.inner.capabilities

    def search(self, query: Query, where: Condition | None, limit: int, effort: Effort) -> list[Hit]:
        """Note the question and pass it on."""
        self.asked.append(Asked(where, limit, effort))
        return self.inner.search(query, where, limit, effort)

    def count(self, where: Condition | None = None) -> int:
        """Pass on."""
        return self.inner.count(where)

    def retrieve(self, ids: Sequence[str], fields: Iterable[str] | None = None) -> dict[str, Payload]:
        """Pass on."""
        return self.inner.retrieve(ids, fields)

    def vectors(self, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Pass on."""
        return self.inner.vectors(ids)

    def info(self) -> StoreInfo:
        """Pass on."""
        return self.inner.info()

    def index_coverage(self) -> dict[str, IndexCoverage]:
        """Pass on."""
        return self.inner.index_coverage()

    def close(self) -> None:
        """Leave the inner store open: it belongs to another."""


def filter_faults(asked: Iterable[Asked], where: SearchFilter) -> list[str]:
    """Return why questions that reached the store do not carry the filter; empty where each does.

    By ids carries everything; by payload, every field of the region's ranges, of the period and of `equals`.
    """
    needed: set[str] = set(where.equals)
    if where.region is not None:
        needed |= {"west", "south", "east", "north"}
    elif where.located is not None:
        needed.add("has_geometry")
    if where.period is not None:
        needed |= {"period_start", "period_end"}
    return [
        f"the query reached the store without {', '.join(sorted(needed - question.fields))}"
        for question in asked
        if "id" not in question.fields and needed - question.fields
    ]
