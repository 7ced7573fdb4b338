"""What others' uploads reveal about a client."""
