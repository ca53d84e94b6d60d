"""The exceptions that this library raises: as few types as a caller may want to tell apart.

Every message says what was expected, what was found, where, and what to do next.
"""


class GatorError(Exception):
    """Any error this library raises on purpose."""


class TraceError(GatorError):
    """The network could not be recorded with these example inputs."""


class KeptError(GatorError, ValueError):
    """The chosen channels do not fit the graph, or `edge` without channels would disconnect the output from the input."""

    def __init__(self, message: str, edge: str = "") -> None:
        super().__init__(message)
        self.edge = edge


class CutError(GatorError):
    """The smaller network could not be built, or does not compute what the masked one computes."""


class BudgetError(GatorError, ValueError):
    """A target cannot be reached within the limits that were given; the message says how near the network can come."""


class FileError(GatorError):
    """A file is damaged, of another format, or of another network."""


class ModelNameError(GatorError, ValueError):
    """A network was asked for by a name that is not known or cannot be built here."""


class RecipeError(GatorError, ValueError):
    """A recipe has a key that is not known, a value that does not fit, or settings that do not go together."""


class RunError(GatorError):
    """A run had to stop, or cannot be started or resumed."""


class DataError(GatorError, ValueError):
    """A data set is not known by this name, is not where it was looked for, or is damaged."""


class MissingExtraError(GatorError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""


class UnsupportedTorchError(GatorError, ImportError):
    """This torch release lacks something that the library needs; the message names the releases that work."""
