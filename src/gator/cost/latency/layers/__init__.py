"""A network divided into layers that can be timed alone."""
