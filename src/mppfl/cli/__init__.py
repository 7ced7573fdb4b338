"""Doors into the house: they hold no mathematics."""
