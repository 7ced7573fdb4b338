"""The report page of a run."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .page import read_template, report_page, write_report
    from .svg import Frame, band_path, curve_path, style_of

export_lazily(__name__)
