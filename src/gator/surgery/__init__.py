"""From kept channels to a smaller network."""
