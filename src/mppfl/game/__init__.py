"""What everybody does about it."""
