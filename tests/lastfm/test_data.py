"""The two files are read whole, or refused with the line that is wrong; splits hide what they should."""

import numpy as np
import pytest
from examples.lastfm.data import hold_out, read_lastfm, set_apart

from mppfl.errors import BadFile, BadInput
from tests.lastfm.drawn import FRIENDS_HEADER, LISTENS_HEADER, pairs_of, write_lastfm


def test_files_come_back_as_they_were_written_but_for_rare_artists(listening, lastfm_folder):
    friends, listens = pairs_of()
    assert listening.num_users == 120
    assert listening.degrees.sum() == 2 * len(friends)
    assert listening.listens.sum() == len(listens)
    pairs = {(listening.users[a], listening.artists[b]) for a, b in np.argwhere(listening.listens.toarray() > 0)}
    assert pairs == {(str(a + 1), str(b + 101)) for a, b in listens}
    counts = np.bincount(listens[:, 1])
    least = int(np.median(counts))
    kept = read_lastfm(lastfm_folder, least_listeners=least)
    assert set(kept.artists) == {str(artist + 101) for artist in np.flatnonzero(counts >= least)}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["userID,artistID,weight"], "line 1: must be the header userID, artistID, weight"),
        ([], "line 1: must be the header"),
        ([LISTENS_HEADER, "1\t101"], "line 2, '1\\t101': must be three whole numbers"),
        ([LISTENS_HEADER, "1\t101\t3", "1\tBjörk\t3"], "line 3"),
        ([LISTENS_HEADER, "1\t101\t-3"], "three whole numbers"),
        ([LISTENS_HEADER, "999\t101\t3"], "line 2: user 999 has no friend in user_friends.dat"),
        ([LISTENS_HEADER, "1\t101\t3", "1\t101\t4"], "line 3: user 1 and artist 101 stand in line 2 already"),
        ([LISTENS_HEADER, "1\t101\t3"], "0 artists have at least 10 listeners"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path, lines, message):
    write_lastfm(tmp_path)
    (tmp_path / "user_artists.dat").write_text("\n".join(lines))
    with pytest.raises(BadFile) as caught:
        read_lastfm(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path):
    for folder, missing in (
        (tmp_path / "no", "no such folder"),
        (tmp_path, r"user_friends\.dat"),
        (tmp_path, r"user_artists\.dat"),
    ):
        with pytest.raises(BadFile, match=missing):
            read_lastfm(folder)
        if folder == tmp_path:
            (tmp_path / "user_friends.dat").write_text(f"{FRIENDS_HEADER}\n1\t2\n")


def test_a_split_hides_a_share_of_every_users_artists_and_loses_none(listening):
    held = hold_out(listening, 0.2, np.random.default_rng(1))
    counts = np.asarray(listening.listens.sum(axis=1)).ravel()
    np.testing.assert_array_equal(held.hidden.sum(axis=1), np.rint(0.2 * counts))
    np.testing.assert_array_equal(held.known + held.hidden.toarray(), listening.listens.toarray())
    assert set_apart(120, 0.25, np.random.default_rng(0)).sum() == 30
    with pytest.raises(BadInput, match="must leave users on both sides"):
        set_apart(10, 0.01, np.random.default_rng(0))
