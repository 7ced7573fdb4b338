"""Property tests try new examples on every machine but CI, where one commit must always give one verdict."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
