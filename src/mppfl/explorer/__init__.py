"""The explorer: one web page on loopback that shows a network, the game on it, and runs; it computes nothing itself."""
