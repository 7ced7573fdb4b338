"""The explorer: one web page on loopback that shows a network, the game on it, and runs; it computes nothing itself."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .answers import Answer
    from .callbacks import choices_of
    from .chart import ROUNDS, Axis, Bars, Chart, Line, Points, chart_csv, chart_json, in_words
    from .chart_files import chart_file
    from .chart_plotly import MOST_POINTS, thinned, to_plotly
    from .choices import (
        CLIENTS_ARE,
        COLOURS,
        KEYS,
        LEADERS,
        MECHANISM_OF_LEADER,
        ONE_OF,
        Choices,
        commands,
        experiment_of,
        from_query,
        to_query,
        to_toml,
        with_preset,
    )
    from .comparison_view import LEFT_OUT, comparison
    from .door import COOKIE, Door, cookie_for, door_for
    from .downloads import download
    from .drawing import (
        MOST_CLIENTS,
        MOST_COMMUNITIES,
        MOST_COMMUNITY_LINKS,
        MOST_LINKS,
        Drawn,
        community_values,
        elements,
        node_paint,
        picture,
    )
    from .exposure_view import client_view, what_if
    from .memory import Memory
    from .page import (
        CLIENT_WORDS,
        COMPARISON_CHARTS,
        FAMILY_NAMES,
        LEADER_WORDS,
        PARTICIPATION_WORDS,
        ROUND_CHARTS,
        RUN_CHARTS,
    )
    from .run_charts import accuracy
    from .run_view import RunReader, ledger_rows, list_runs, read_run
    from .scene_charts import budgets_by_round
    from .server import address_of, bind, make_app
    from .site import Site
    from .uploads import Uploads, check, shown
    from .warm_up import play_every_kind, warm_up
    from .words import as_text, facts, table
    from .world import World, require_quick, spent_in

export_lazily(__name__)
