"""Audits: does a release protect as much as it says? Measured, with a verdict."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .canaries import (
        audit_mechanism,
        clip_and_noise,
        epsilon_of_gaussian,
        guessing_epsilon,
        guessing_p_value,
        one_run_audit,
    )
    from .float_grid import audit_float
    from .result import AuditResult, Verdict
    from .sensitivity import _clip, audit_sensitivity

export_lazily(__name__)
