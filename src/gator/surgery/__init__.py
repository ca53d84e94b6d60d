"""From kept channels to a masked or a smaller network."""
