"""Select layers of a model by name, by glob pattern or as module objects, in the same way for every argument that takes layers.

The result is a tuple of qualified names of modules, parameters or buffers; a name includes everything under it (`under`).
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from gator.errors import GatorError, TraceError
from gator.graph.bake import baked
from gator.suggest import did_you_mean

_WILDCARDS = frozenset("*?[")


def layers_named(
    model: nn.Module,
    given: Iterable[str | nn.Module],
    argument: str = "fixed",
    *,
    error: type[GatorError] = TraceError,
) -> tuple[str, ...]:
    """The qualified names that `given` selects, each once, in the order given.

    `given` holds names of modules, parameters or buffers, modules of `model` themselves, and glob patterns, in which `*`
    also matches dots ("layer1.*" is everything inside layer1). A pattern selects only
    what has parameters or buffers; names inside a module that is already selected are not repeated.

    Raises `error`, which names `argument`, for a string instead of a list, a name that the model does not have, a module that
    is not part of it, a layer without parameters or buffers, and a pattern that matches nothing.

    >>> model = torch.nn.ModuleDict({"body": torch.nn.Linear(2, 3), "head": torch.nn.Linear(3, 2)})
    >>> layers_named(model, ["bo*", model["head"]])
    ('body', 'head')
    """
    if isinstance(given, str):
        raise error(f"{argument}={given!r} is a string; expected a list of names, [{given!r}]")
    if isinstance(given, nn.Module):
        raise error(f"{argument}= is a {type(given).__name__}; expected a list of layers, [layer]")
    items = list(given)
    if not items:
        return ()
    names = _Names(model)
    selected: list[str] = []
    for item in items:
        for name in _names_of(names, item, argument, error):
            if not any(under(name, other) for other in selected):
                selected.append(name)
    return tuple(selected)


def under(layer: str, name: str) -> bool:
    """Whether a layer is the named module or lies inside it."""
    return layer == name or layer.startswith(name + ".")


class _Names:
    """The names that can be selected. Weights that forward computes (weight_norm) have the name of the computed weight."""

    def __init__(self, model: nn.Module) -> None:
        self.of_module = {id(module): name for name, module in model.named_modules()}  # the first name of each
        plain = baked(model)
        self.modules = [name for name, _ in plain.named_modules()]
        self.tensors = [name for name, _ in (*plain.named_parameters(), *plain.named_buffers())]

    def has_tensors(self, name: str) -> bool:
        return any(under(tensor, name) for tensor in self.tensors)


def _names_of(names: _Names, item: str | nn.Module, argument: str, error: type[GatorError]) -> list[str]:
    if isinstance(item, nn.Module):
        if id(item) not in names.of_module:
            raise error(f"{argument}= holds a {type(item).__name__} that is not part of the model")
        name = names.of_module[id(item)]
        if not name:
            raise error(f"{argument}= holds the model itself; name layers of it")
    elif isinstance(item, str):
        name = item
    else:
        raise error(f"{argument}= holds {item!r}; expected names, glob patterns or modules of the model")
    if name not in names.modules and name not in names.tensors:
        if _WILDCARDS & set(name):
            return _matches(names, name, argument, error)
        hint = did_you_mean(name, (*names.modules, *names.tensors), otherwise="see model.named_modules()")
        raise error(f"{argument}= names {name!r}, which the model does not have; {hint}")
    if not names.has_tensors(name):
        raise error(f"{argument}= names {name!r}, which has no parameters or buffers to select; name the layer beside it")
    return [name]


def _matches(names: _Names, pattern: str, argument: str, error: type[GatorError]) -> list[str]:
    found = [name for name in (*names.modules, *names.tensors) if fnmatchcase(name, pattern) and names.has_tensors(name)]
    if not found:
        raise error(f"{argument}= has the pattern {pattern!r}, which matches no layer or parameter; see model.named_modules()")
    return found
