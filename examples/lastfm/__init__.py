"""A recommender for real friends: profiles released once, a server that post-processes, devices that score."""
