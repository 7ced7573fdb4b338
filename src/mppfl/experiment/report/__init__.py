"""The report page of a run."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .figures import VIRIDIS, Frame, Series, _band, _curve, nice_ticks, shortened, style_of
    from .graph import Layout
    from .page import _budget_series, _read, _templates, report_page, write_report

export_lazily(__name__)
