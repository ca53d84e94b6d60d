"""Save networks to files and load them."""
