"""Property tests try new examples on every machine but CI, where one commit must always give one verdict.

No verdict depends on how fast a machine is.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("anywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("anywhere"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "anywhere")
