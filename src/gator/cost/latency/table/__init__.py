"""What a latency table contains, and what is computed from it."""
