"""Learning under the plan: models, local training, release, aggregation, rounds."""

import os

# A product of MKL depends in its last bits on where in memory its matrices begin, and so on which clients are computed
# beside each other. In this mode it does not: a training is the same alone and in company. MKL reads it once.
os.environ.setdefault("MKL_CBWR", "AUTO")
