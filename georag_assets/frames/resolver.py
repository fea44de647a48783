"""From evidence to a graded reference frame.

What belongs here: weighing evidence for a text or a literal, validating candidates by PROJ, and the grade. What does
not: finding mentions (`mentions`, `names`), the transform itself (`project`), and rows of a table (`stage`).

A frame is never generated: every candidate was stated, named or declared, and PROJ must construct it. Confidence is
`(1 - product(1 - w)) * product(1 + v)` over the positive weights w and the negative weights v of its evidence, so a
reader can do the sum again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np
import shapely
from shapely.geometry.base import BaseGeometry

from georag_assets.errors import FrameError, GeoragError
from georag_assets.frames.mentions import Mention, find_mentions
from georag_assets.frames.models import FrameEvidence, FrameResolution, Grade
from georag_assets.frames.project import fits, frame, successor, to_wgs84
from georag_assets.geometry.literal import GeometryLiteral

MEASURED, DESCRIBED = 0.80, 0.55
_DIRECT = ("literal", "sidecar", "declaration")
_WEIGHTS = {"literal": 0.95, "rfc7946": 0.9, "sidecar": 0.95, "declaration": 0.9, "declared_name": 0.7}
_INSIDE, _OUTSIDE, _NO_RETURN, _BALLPARK, _RIVAL = 0.3, -0.5, -0.5, -0.25, -0.6
_ROLE_SHARE = {"data": 1.0, "origin": 0.3, "display": 0.0}
_BASE_SHARE = 0.8


def grade_of(confidence: float) -> Grade:
    """Return what an answer may do with a frame of this confidence."""
    return "measured" if confidence >= MEASURED else "described" if confidence >= DESCRIBED else "unresolved"


class FrameResolver:
    """Weighs what a text, its literals, its sidecar and its declaration say of the frame."""

    def resolve(
        self,
        text: str,
        literals: Sequence[GeometryLiteral] = (),
        *,
        declared: int | None = None,
        sidecar: int | tuple[int, str] | None = None,
        names: Sequence[str] = (),
    ) -> FrameResolution:
        """Return the frame that governs a text's geometry, or without one, the frame that the text speaks of.

        Parameters
        ----------
        text
            Prose to read for stated codes and names.
        literals
            Its geometry literals; the least certain of their frames governs.
        declared
            EPSG code that the corpus's declaration states.
        sidecar
            EPSG code of a geometry beside the text, alone or with where it was read.
        names
            Frame names that the declaration states.
        """
        mentions = find_mentions(text)
        if sidecar is not None and not literals:
            return self.of_geometry(None, sidecar=sidecar, declared=declared)
        if not literals:
            return self.of_mentions(mentions, declared=declared, names=names)
        # One that cannot be read has no coordinates to be in a frame of their own.
        readable = [item for item in literals if item.geometry is not None] or literals
        found = [self.frame_of(item, mentions=mentions, declared=declared, names=names) for item in readable]
        return governing(found)

    def frame_of(
        self,
        literal: GeometryLiteral,
        *,
        mentions: Sequence[Mention] = (),
        declared: int | None = None,
        names: Sequence[str] = (),
    ) -> FrameResolution:
        """Return the frame of one literal: what it states itself, else what stands around it."""
        start, end = literal.start, literal.end
        terms: list[FrameEvidence] = []
        if literal.epsg is not None:
            span = literal.literal[:60]
            terms.append(_term("literal", span, f"EPSG:{literal.epsg}", _WEIGHTS["literal"], start, end))
        elif literal.geographic and "geojson" in literal.kind:
            why = "GeoJSON without crs is WGS 84 (RFC 7946, section 4)"
            terms.append(_term("literal", why, "EPSG:4326", _WEIGHTS["rfc7946"], start, end))
        terms += [*_declared(declared, names), *_mentioned(mentions)]
        if literal.geographic or in_degrees(literal.geometry):
            terms = [_for_degrees(term, literal) for term in terms]
        resolution = self._weigh(terms, literal.geometry)
        if resolution.epsg is None and (literal.geographic or in_degrees(literal.geometry)):
            note = "taken as WGS 84 because the numbers can be degrees; a stated code or datum would settle it"
            rest = f"; {resolution.note}" if resolution.note and resolution.candidates else ""
            return replace(resolution, assumed_epsg=4326, confidence=0.0, note=note + rest)
        return resolution

    def of_mentions(
        self, mentions: Sequence[Mention], *, declared: int | None = None, names: Sequence[str] = ()
    ) -> FrameResolution:
        """Return the frame that a text without geometry speaks of."""
        return self._weigh([*_declared(declared, names), *_mentioned(mentions)], None)

    def of_geometry(
        self,
        geometry: BaseGeometry | None,
        *,
        sidecar: int | tuple[int, str] | None = None,
        declared: int | None = None,
        unstated: str | None = None,
    ) -> FrameResolution:
        """Return the frame of a geometry that lies beside its text: its file's, else the declared one.

        `unstated` says what its file has in a code's place, and goes into the note where nothing settles the frame.
        """
        terms: list[FrameEvidence] = []
        if sidecar is not None:
            code, where = sidecar if isinstance(sidecar, tuple) else (sidecar, "sidecar")
            source = "declaration" if "declar" in where.lower() else "sidecar"
            terms.append(_term(source, where, f"EPSG:{code}", _WEIGHTS[source]))
        elif declared is not None:
            terms += _declared(declared, ())
        resolution = self._weigh(terms, geometry)
        if resolution.epsg is not None:
            return resolution
        said = f"{unstated}; " if unstated else ""
        if in_degrees(geometry):
            note = f"{said}taken as WGS 84 because the numbers can be degrees; a declared frame would settle it"
            return replace(resolution, assumed_epsg=4326, confidence=0.0, note=note)
        return replace(resolution, note=said + resolution.note)

    def _weigh(self, terms: Sequence[FrameEvidence], geometry: BaseGeometry | None) -> FrameResolution:
        notes: list[str] = []
        valid = [checked for term in terms if (checked := _validated(term, notes)) is not None]
        direct = {term.candidate for term in valid if term.source in _DIRECT}
        scores: dict[str, float] = {}
        checks: dict[str, list[FrameEvidence]] = {}
        for candidate in dict.fromkeys(term.candidate for term in valid if term.weight > 0):
            checks[candidate] = _against(candidate, geometry)
            own = [term.weight for term in (*valid, *checks[candidate]) if term.candidate == candidate]
            scores[candidate] = confidence_of(own)
        stated = _as_stated(terms)
        ranked = sorted(scores, key=lambda code: (code not in direct, -scores[code], code))
        others = tuple(_also(terms, ranked))
        if not ranked:
            why = "; ".join(notes) or "no frame is stated, named or declared; a code or a datum would settle it"
            return FrameResolution(None, None, 0.0, "unresolved", tuple(valid), others, note=why)
        best = ranked[0]
        evidence = [*valid, *checks[best]]
        rivals = [code for code in ranked[1:] if code in direct or not direct]
        if rivals:
            rival = max(rivals, key=scores.__getitem__)
            share = _RIVAL * min(1.0, scores[rival] / scores[best]) if scores[best] else _RIVAL
            evidence.append(_term("rival", f"the text also speaks for {rival}", best, round(share, 3)))
            notes.append(
                f"{len(ranked)} frames are offered; a statement of which one the coordinates are in would settle it"
            )
        elif len(ranked) > 1:
            notes.append("the text also names " + ", ".join(ranked[1:]))
        accuracy, more = _accuracy(best, geometry)
        evidence += more
        confidence = round(confidence_of([term.weight for term in evidence if term.candidate == best]), 4)
        grade = grade_of(confidence)
        if best in stated and grade != "unresolved":
            evidence = [replace(term, candidate=stated[best]) if term.candidate == best else term for term in evidence]
            ranked[0] = best = stated[best]
        authority, code = best.split(":")
        if grade == "unresolved":
            notes.append(f"{best} is the likeliest, and not established")
            return FrameResolution(
                None, None, confidence, grade, tuple(evidence), (*ranked, *others), None, None, "; ".join(notes)
            )
        return FrameResolution(
            int(code),
            authority,
            confidence,
            grade,
            tuple(evidence),
            (*ranked, *others),
            accuracy,
            None,
            "; ".join(notes),
        )


def governing(resolutions: Iterable[FrameResolution]) -> FrameResolution:
    """Return the least certain of several frames, with a note where they differ; the first among equals."""
    found = list(resolutions)
    least = min(found, key=lambda resolution: resolution.confidence)
    different = {(resolution.epsg, resolution.assumed_epsg) for resolution in found}
    if len(different) == 1:
        return least
    note = f"its geometries are in {len(different)} frames; the least certain governs"
    return replace(least, note=f"{note}; {least.note}" if least.note else note)


def confidence_of(weights: Iterable[float]) -> float:
    """Return the confidence that weights add up to: positive ones support, negative ones take a share away."""
    weights = list(weights)
    support = 1 - prod(1 - weight for weight in weights if weight > 0)
    return support * prod(1 + weight for weight in weights if weight < 0)


def in_degrees(geometry: BaseGeometry | None) -> bool:
    """Return whether all coordinates can be degrees of longitude and latitude."""
    if geometry is None or geometry.is_empty:
        return False
    xy = np.abs(shapely.get_coordinates(geometry))
    return bool(np.isfinite(xy).all() and xy[:, 0].max() <= 360 and xy[:, 1].max() <= 90)


def _term(source: str, text: str, candidate: str, weight: float, start: int = -1, end: int = -1) -> FrameEvidence:
    return FrameEvidence(source, text, start, end, candidate, weight)


def _declared(declared: int | None, names: Sequence[str]) -> list[FrameEvidence]:
    terms = []
    if declared is not None:
        terms.append(_term("declaration", "declared frame", f"EPSG:{declared}", _WEIGHTS["declaration"]))
    for name in names:
        for mention in find_mentions(f"datum {name}"):
            share = _WEIGHTS["declared_name"] / len(mention.codes)
            terms += [_term("declaration", name, code, share) for code in mention.codes]
    return terms


def _mentioned(mentions: Sequence[Mention]) -> list[FrameEvidence]:
    """Return one term per candidate and source: saying a name twice proves no more than saying it once."""
    best: dict[tuple[str, str], FrameEvidence] = {}
    for mention in mentions:
        weight = round(mention.weight * _ROLE_SHARE[mention.role] / len(mention.codes), 4)
        for code in mention.codes:
            term = _term(mention.source, mention.text, code, weight, mention.start, mention.end)
            if (code, mention.source) not in best or best[code, mention.source].weight < weight:
                best[code, mention.source] = term
    return list(best.values())


@lru_cache(maxsize=4096)
def _horizontal(code: str) -> str | None:
    """Return the two-dimensional geographic or projected frame of a code, or None for a purely vertical one."""
    crs = frame(successor(code))
    if crs.is_compound:
        crs = crs.sub_crs_list[0]
    if crs.is_vertical or crs.is_geocentric or not (crs.is_geographic or crs.is_projected):
        return None
    if len(crs.axis_info) == 3:
        crs = crs.to_2d()
    authority = crs.to_authority() or crs.to_authority(min_confidence=100)
    return f"{authority[0]}:{authority[1]}" if authority and authority[0] == "EPSG" else None


def _validated(term: FrameEvidence, notes: list[str]) -> FrameEvidence | None:
    try:
        code = _horizontal(term.candidate)
    except FrameError as error:
        notes.append(error.what)
        return None
    if code is None:
        return None
    if code != term.candidate:
        notes.append(f"{term.candidate} stands for {code}")
    return replace(term, candidate=code)


def _as_stated(terms: Sequence[FrameEvidence]) -> dict[str, str]:
    """Return, by plane frame, the three-dimensional or compound code that the text states outright."""
    stated: dict[str, str] = {}
    for term in sorted(terms, key=lambda term: term.weight):
        if term.source in (*_DIRECT, "stated_code") and term.weight > 0:
            try:
                plane, code = _horizontal(term.candidate), successor(term.candidate)
            except FrameError:
                continue
            if plane is not None:
                stated[plane] = code
    return {plane: code for plane, code in stated.items() if plane != code}


def _also(terms: Sequence[FrameEvidence], ranked: Sequence[str]) -> list[str]:
    """Return candidates that were named and cannot be the frame of a plane geometry: vertical, for display only."""
    also = []
    for term in terms:
        try:
            code = _horizontal(term.candidate) or term.candidate
        except FrameError:
            continue
        if code not in ranked and code not in also:
            also.append(code)
    return also


def _for_degrees(term: FrameEvidence, literal: GeometryLiteral) -> FrameEvidence:
    """Read a projected frame's name as its datum where the numbers are degrees and not that projection's."""
    if term.weight <= 0 or term.source == "literal":
        return term
    try:
        crs = frame(term.candidate)
        if not crs.is_projected or (
            literal.geometry is not None and fits(literal.geometry, int(term.candidate[5:]))[0]
        ):
            return term
        authority = crs.geodetic_crs.to_authority() if crs.geodetic_crs else None
    except FrameError:
        return term
    if not authority:
        return term
    return replace(term, candidate=":".join(authority), weight=round(term.weight * _BASE_SHARE, 4))


def _against(candidate: str, geometry: BaseGeometry | None) -> list[FrameEvidence]:
    """Return what the coordinates say of a candidate."""
    if geometry is None or geometry.is_empty:
        return []
    try:
        inside, returns = fits(geometry, int(candidate.split(":")[1]))
    except FrameError as error:
        return [_term("magnitude", error.what, candidate, _OUTSIDE)]
    area = frame(candidate).area_of_use
    name = (area.name if area else "its area of use")[:80]
    terms = [
        _term("magnitude", f"coordinates lie {'inside' if inside else 'outside'} {name}", candidate, w)
        for w in [_INSIDE if inside else _OUTSIDE]
    ]
    if inside and not returns:
        terms.append(_term("magnitude", "the transform and its inverse disagree", candidate, _NO_RETURN))
    return terms


def _accuracy(candidate: str, geometry: BaseGeometry | None) -> tuple[float | None, list[FrameEvidence]]:
    if geometry is None or geometry.is_empty:
        return None, []
    try:
        _, accuracy, flags = to_wgs84(geometry, int(candidate.split(":")[1]))
    except GeoragError:
        return None, []
    if "ballpark_operation" in flags:
        return accuracy, [_term("operation", "only a ballpark operation leads to EPSG:4326", candidate, _BALLPARK)]
    return accuracy, []
