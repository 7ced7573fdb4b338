"""Audits: does a release protect as much as it says? Measured, with a verdict."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .canaries import AuditResult, Verdict, audit_float, audit_mechanism, clip_and_noise, epsilon_of_gaussian

export_lazily(__name__)
