"""Who can leak about whom."""
