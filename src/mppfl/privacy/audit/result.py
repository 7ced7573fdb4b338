"""AuditResult: what an audit claimed, what it measured, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail"]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """One audit's finding.

    audit       which audit: sensitivity, mechanism, float or neighbour
    verdict     "fail" only where the measurement contradicts the claim
    claimed     what the mechanism promises, in the audit's own unit
    measured    what was found (a lower bound where `confidence` says so)
    confidence  probability with which a sound mechanism passes, or None where nothing was drawn at random
    details     everything else a reader needs, by name
    """

    audit: str
    verdict: Verdict
    claimed: float | None
    measured: float | None
    confidence: float | None
    details: dict[str, Any] = field(default_factory=dict)
