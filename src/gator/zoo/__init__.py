"""Networks and data sets by name."""

from gator.zoo.models import Network, build

__all__ = ["Network", "build"]
