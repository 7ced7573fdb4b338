"""Warming up plays every kind of game once, and never gets in the way."""

from mppfl.explorer import play_every_kind
from tests.homes import home

warm_up = home(play_every_kind)


def test_every_leader_bound_rule_and_network_is_played():
    assert warm_up.play_every_kind() == 6 * 2 * 3 + 5 + 2


def test_it_runs_beside_the_server_and_ends_with_it():
    thread = warm_up.warm_up()
    assert thread.daemon
    thread.join(60)
    assert not thread.is_alive()
