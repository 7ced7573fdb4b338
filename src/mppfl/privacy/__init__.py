"""What a budget means."""
