"""Networks and data sets by name."""

from gator.zoo.data import Data, Loader, load_data, made_up, shape_of
from gator.zoo.models import Network, build

__all__ = ["Data", "Loader", "Network", "build", "load_data", "made_up", "shape_of"]
