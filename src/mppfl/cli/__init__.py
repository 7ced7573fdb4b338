"""The command line: commands read options, call the library and print; they hold no mathematics."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .compare import comparison_figure
    from .explore import open_site
    from .inputs import Command, DebugOption, JsonOption, SeedOption, print_json, working
    from .main import app, main, run

export_lazily(__name__)
