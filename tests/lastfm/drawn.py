"""Small drawn data of the form of HetRec Last.fm: communities of friends with artists of their own."""

import numpy as np
from examples.lastfm.profiles import release_profiles

FRIENDS_HEADER, LISTENS_HEADER = "userID\tfriendID", "userID\tartistID\tweight"


def pairs_of(num_users=120, num_artists=48, num_groups=4, seed=0):
    """Friendships and user-artist pairs; friends are mostly of one group, and each group likes its own artists."""
    rng = np.random.default_rng(seed)
    group = np.arange(num_users) % num_groups
    same = group[:, None] == group
    connected = np.triu(rng.random((num_users, num_users)) < np.where(same, 0.12, 0.008), 1)
    for user in range(num_users - num_groups):  # a chain through every group, so that nobody is alone
        connected[user, user + num_groups] = True
    likes = np.where(group[:, None] == np.arange(num_artists) % num_groups, 0.55, 0.08)
    listens = rng.random((num_users, num_artists)) < likes
    return np.argwhere(connected), np.argwhere(listens)


def write_lastfm(folder, **drawn):
    """Both files in `folder`; users are called 1, 2, ..., artists 101, 102, ..."""
    friends, listens = pairs_of(**drawn)
    lines = [FRIENDS_HEADER, *(f"{a + 1}\t{b + 1}" for a, b in friends)]
    (folder / "user_friends.dat").write_text("\n".join(lines) + "\n")
    lines = [LISTENS_HEADER, *(f"{user + 1}\t{artist + 101}\t{7 + user}" for user, artist in listens)]
    (folder / "user_artists.dat").write_text("\n".join(lines) + "\n")
    return folder


def released(listening, lists, budgets, level="record", seed=0):
    """Profiles of everybody with simulated noise; `budgets` may be one for all."""
    budgets = np.broadcast_to(np.asarray(budgets, dtype=float), len(lists)).copy()
    return release_profiles(lists, budgets, level, users=listening.users, rng=np.random.default_rng(seed))
