"""Learning under the plan: models, local training, release, aggregation, rounds."""
