"""The explorer: one web page on loopback that shows a network, the game on it, and runs; it computes nothing itself."""

from typing import TYPE_CHECKING

from mppfl.exports import export_lazily

if TYPE_CHECKING:
    from .callbacks import choices_of
    from .client_view import ClientView, client_facts, client_view, what_if
    from .markup import panel
    from .network_view import (
        MOST_CLIENTS,
        MOST_COMMUNITIES,
        MOST_COMMUNITY_LINKS,
        MOST_LINKS,
        OTHERS,
        CommunityTree,
        draw,
        elements,
        influence_between,
        node_paint,
        node_values,
    )
    from .page import FAMILY_NAMES, OF_GAME, PARTICIPATION_WORDS, as_levers
    from .round_view import COMPARISON_CHARTS, ROUND_CHARTS, comparison, comparison_charts, round_charts
    from .run_view import RUN_CHARTS, RunReader, ledger_rows, progress, run_charts, run_view
    from .server import COOKIE, AccessControl, access_for, address_of, bind, cookie_for, make_app
    from .state import READ_AS, SHOWN, Choices, ViewState, commands, from_link, to_link, to_toml
    from .world import COLOURS, Memory, Scene, Site, World, require_quick, warm_up

export_lazily(__name__)
