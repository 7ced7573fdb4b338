"""Audits: does a release protect as much as it says? Measured, with a verdict."""
