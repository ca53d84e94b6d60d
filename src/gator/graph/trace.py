"""`trace`: from a model and example inputs to its hypergraph. The model is not changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from gator.errors import TraceError
from gator.graph.analysis import HEADS, Analysis, Heads, analyse
from gator.graph.bake import baked
from gator.graph.dispatch_mode import Names
from gator.graph.explain import Explainer
from gator.graph.global_state import collector_paused
from gator.graph.hypergraph import Edge, Hypergraph, SavedGraph, group
from gator.graph.image_sizes import Bound, with_image_sizes
from gator.graph.inputs import Inputs, describe
from gator.graph.macs import macs
from gator.graph.output_hint import output_hint
from gator.graph.outputs import is_under
from gator.graph.program import Program, needed
from gator.graph.record_forward import record, runs_at_other_sizes, with_small_images
from gator.graph.replaced_forward import has_replaced_forward
from gator.graph.rules import has_rule
from gator.graph.select_layers import layers_named, under
from gator.suggest import did_you_mean


def trace(
    model: nn.Module,
    example_inputs: Any,
    *,
    fixed: Sequence[str | nn.Module] = (),
    heads: Heads | str | Mapping[str, Heads] = "whole",  # any str, as the command line passes it on; checked below
    outputs: Sequence[str] = (),
) -> Hypergraph:
    """`gator.trace` without `keep_class` (surgery/keep_class.py), which the class of the network has to be tried for."""
    if not isinstance(model, nn.Module):
        raise TraceError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    _check_forward_is_own(model)
    if isinstance(outputs, str):
        raise TraceError(f"outputs={outputs!r}; expected a list of names: outputs=[{outputs!r}]")
    checked = _checked_heads(heads)
    return trace_inputs(model, describe(example_inputs, outputs), fixed=layers_named(model, fixed), heads=checked)


def trace_inputs(
    model: nn.Module, inputs: Inputs, *, fixed: tuple[str, ...], heads: Heads | dict[str, Heads], keep_class: bool = False
) -> Hypergraph:
    """Like `trace`, with a description of the inputs instead of example inputs.

    `keep_class`: parts of a split keep the same positions. What else the class needs is in `fixed` (surgery/keep_class.py).
    """
    plain = baked(model)
    _check_names(plain, heads)
    with collector_paused():
        return _traced(model, plain, inputs, fixed, heads, keep_class)


def _traced(
    model: nn.Module,
    plain: nn.Module,
    inputs: Inputs,
    fixed: tuple[str, ...],
    heads: Heads | dict[str, Heads],
    keep_class: bool,
) -> Hypergraph:
    names = Names(plain)
    programs = _recorded_in_both_modes(plain, inputs, names)
    if any(program.batch is None for program in programs):
        inputs = replace(inputs, batch=None)  # in one mode the network runs at this batch size only, so it is taken in both
        programs = [
            program if program.batch is None else record(plain, inputs, has_rule, training=program.training, names=names)
            for program in programs
        ]
    _check_outputs(programs, inputs.outputs)
    integers = {name: buffer for name, buffer in plain.named_buffers() if not buffer.dtype.is_floating_point}
    analysis = analyse(programs, integers, fixed=fixed, heads=heads, equal_parts=keep_class)
    if not isinstance(heads, str):
        _check_heads_found(analysis, heads)
    baked_names = frozenset(named_tensors(plain)) - frozenset(named_tensors(model))
    return _assemble(plain, inputs, analysis, fixed, heads, baked_names)


def _recorded_in_both_modes(model: nn.Module, inputs: Inputs, names: Names) -> list[Program]:
    """The programs of train and eval mode. If only train mode cannot be recorded, the error says so."""
    try:
        train = record(model, inputs, has_rule, training=True, names=names)
    except TraceError as error:
        if not _evaluates(model, inputs, names):
            raise
        raise TraceError(
            f"{error}\n  This happens in train mode only: switch off what training alone needs (an augmentation, for example) "
            "before tracing."
        ) from error
    return [train, record(model, inputs, has_rule, training=False, names=names)]


def _evaluates(model: nn.Module, inputs: Inputs, names: Names) -> bool:
    try:
        record(model, inputs, has_rule, training=False, names=names)
    except TraceError:
        return False
    return True


def _check_forward_is_own(model: nn.Module) -> None:
    if has_replaced_forward(model):
        raise TraceError(
            "this model has gates or a mask on; it can only be traced or cut without them\n"
            "  Use pruner.cut(), or call detach() of its pruner or leave the masked() block first."
        )


def _checked_heads(heads: str | Mapping[str, str]) -> Heads | dict[str, Heads]:
    """`heads` with the type that it must have; TraceError for other strings."""
    return _checked_mode(heads) if isinstance(heads, str) else {name: _checked_mode(mode) for name, mode in heads.items()}


def _checked_mode(mode: str) -> Heads:
    if mode in HEADS:
        return mode
    raise TraceError(f'heads={mode!r}; expected "whole", "dims" or a dict of layer names to one of them')


def _check_heads_found(analysis: Analysis, heads: Mapping[str, Heads]) -> None:
    writers = analysis.attention_layers()
    for name in heads:
        if not any(under(layer, name) for layer in writers):
            known = ", ".join(writers[:4]) or "none"
            raise TraceError(f"heads= names {name!r}, which writes no queries, keys or values; the layers that do are {known}")


def _check_outputs(programs: Sequence[Program], outputs: Sequence[str]) -> None:
    """Raise if outputs= names something that the network returns in neither mode."""
    known = list(dict.fromkeys(name for program in programs for name in program.output_names))
    for given in outputs:
        if not any(is_under(name, given) for name in known):
            top = dict.fromkeys(name.split(".")[0] for name in known)
            raise TraceError(
                f"outputs= names {given!r}, which the network does not return; it returns {', '.join(top) or 'a tensor'}"
            )


def _check_names(model: nn.Module, heads: Heads | Mapping[str, Heads]) -> None:
    modules = {name for name, _ in model.named_modules()}
    for name in [] if isinstance(heads, str) else heads:
        if name not in modules:
            hint = did_you_mean(name, modules, otherwise="see model.named_modules()")
            raise TraceError(f"heads= names {name!r}, which the model does not have; {hint}")


def _assemble(
    model: nn.Module,
    inputs: Inputs,
    analysis: Analysis,
    fixed: tuple[str, ...],
    heads: Heads | dict[str, Heads],
    baked_names: frozenset[str],
) -> Hypergraph:
    roots = analysis.space.table()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    evaluated = analysis.results[1].program
    batch, recorded = (inputs.batch, evaluated.batch) if evaluated.batch and inputs.batch else (1, 1)
    counted = []
    live = needed(evaluated)
    for call in evaluated.calls:
        cost = macs(call, lambda v: evaluated.values[v].shape)
        if cost and call.index in live:
            counted.append((call, cost * batch // recorded))
    grouped = group(roots, analysis.attributes, analysis.producers, analysis.consumers)
    edge_of = {root: (index, unit) for index, item in enumerate(grouped) for unit, root in enumerate(item[1])}
    of_call = _edges_of_calls(analysis, roots, edge_of, counted)
    edges = []
    for index, (name, classes, producers, consumers, members) in enumerate(grouped):
        touched = {m.parameter for m in members}
        cost = sum(c for call, c in counted if index in of_call[call.index])
        edges.append(Edge(name, len(classes), producers, consumers, members, sum(sizes.get(p, 0) for p in touched), cost))
    on_axis = {m.parameter for edge in edges for m in edge.members}
    hint = output_hint(analysis.pinned, sizes, tuple(analysis.outputs))
    notes = dict.fromkeys([*(note for result in analysis.results for note in result.program.notes), *([hint] if hint else ())])
    return Hypergraph(
        edges=tuple(edges),
        inputs=inputs,
        unsupported=tuple(analysis.unsupported),
        parameters=sum(sizes.values()),
        prunable_parameters=sum(size for name, size in sizes.items() if name in on_axis),
        macs=sum(cost for _, cost in counted),
        fixed=fixed,
        heads=heads,
        keep_class=analysis.equal_parts,
        notes=tuple(notes),
        train=analysis.results[0],
        eval=analysis.results[1],
        roots=roots,
        attributes=analysis.attributes,
        edge_of=edge_of,
        baked=baked_names,
        explainer=Explainer(analysis.space.ties, analysis.calls, roots, analysis.attributes),
        producers=tuple(analysis.producers),
    )


def _edges_of_calls(
    analysis: Analysis, roots: np.ndarray[Any, Any], edge_of: dict[int, tuple[int, int]], counted: list[tuple[Any, int]]
) -> dict[int, set[int]]:
    axes = analysis.results[1].axes
    lookup = np.full(len(roots), -1)
    for root, (index, _) in edge_of.items():
        lookup[root] = index
    result: dict[int, set[int]] = {}
    for call, _ in counted:
        values = [v for _, v in call.tensors()] + [v for v in call.outputs if v is not None]
        found: set[int] = set()
        for value in values:
            for labels in axes[value]:
                if labels is not None:
                    found.update(np.unique(lookup[roots[labels]]).tolist())
        result[call.index] = found - {-1}
    return result


def retraced(graph: SavedGraph, model: nn.Module) -> Hypergraph:
    """The graph with its programs: `graph` itself, or a new trace if it was read from JSON.

    Raises TraceError if the graph describes another network.
    """
    _check_forward_is_own(model)
    if isinstance(graph, Hypergraph):
        _check_shapes(graph, model)
        return graph
    again = trace_inputs(model, graph.inputs, fixed=graph.fixed, heads=graph.heads, keep_class=graph.keep_class)
    check_same(graph.edges, again.edges, TraceError)
    return again


def sizes_free(graph: Hypergraph, model: nn.Module) -> bool:
    """Whether the traced program is right for other image sizes (or sequence lengths) too; computed once per graph."""
    if not graph.sizes_free:
        evaluated = graph.eval.program
        batched = evaluated.batch is not None and graph.inputs.batch is not None
        graph.sizes_free.append(batched and runs_at_other_sizes(baked(model), graph.inputs, has_rule, evaluated))
    return graph.sizes_free[0]


def for_any_image(graph: Hypergraph, model: nn.Module) -> Hypergraph | str:
    """The graph with formulas of height and width in its programs, or why the network is bound to one size of images."""
    if not graph.for_any_image:
        graph.for_any_image.append(_with_image_sizes(graph, baked(model)))
    found: Hypergraph | str = graph.for_any_image[0]
    return found


def _with_image_sizes(graph: Hypergraph, model: nn.Module) -> Hypergraph | str:
    if graph.inputs.batch is None:
        return "it runs at one batch size only"
    try:
        train, evaluated = (
            replace(each, program=with_image_sizes(model, graph.inputs, has_rule, each.program)) for each in graph.programs
        )
    except Bound as reason:
        return str(reason)
    return replace(graph, train=train, eval=evaluated)


def small_inputs(graph: Hypergraph, model: nn.Module) -> Inputs:
    """Inputs with small images for a quick check, if the model makes the same calls for them; otherwise those of the graph."""
    if not graph.small_inputs:
        graph.small_inputs.append(with_small_images(baked(model), graph.inputs, has_rule, graph.eval.program))
    return graph.small_inputs[0]


def _check_shapes(graph: Hypergraph, model: nn.Module) -> None:
    """Raise if the graph describes another network, or this network before a cut."""
    tensors = named_tensors(model)
    for labelled in graph.programs:
        for value in labelled.program.attributes():
            tensor = tensors.get(value.name)
            if tensor is not None and tuple(tensor.shape) != tuple(value.shape):
                raise TraceError(
                    f"this graph describes another network: {value.name} has shape {tuple(tensor.shape)}, the graph was traced "
                    f"with {tuple(value.shape)}\n  Call gator.trace(model, example_inputs) again after every cut."
                )
            if tensor is None and value.name not in graph.baked:
                raise TraceError(
                    f"this graph describes another network: it has {value.name}, which this {type(model).__name__} lacks\n"
                    "  Call gator.trace with this model."
                )


class HasWidth(Protocol):
    """Anything with a name and a width."""

    @property
    def name(self) -> str: ...
    @property
    def width(self) -> int: ...


def check_same(expected: Sequence[HasWidth], found: Sequence[HasWidth], error: type[Exception]) -> None:
    """Raise, naming the first edge in which two networks differ."""
    for one, other in zip(expected, found, strict=False):
        if one.name != other.name or one.width != other.width:
            raise error(
                f"another architecture: expected edge {one.name!r} of width {one.width}, "
                f"found {other.name!r} of width {other.width}"
            )
    if len(expected) != len(found):
        longer = expected if len(expected) > len(found) else found
        what = "is missing from this model" if longer is expected else "is new in this model"
        raise error(
            f"another architecture: expected {len(expected)} edges, found {len(found)}; "
            f"edge {longer[min(len(expected), len(found))].name!r} {what}"
        )


def named_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name; tied ones appear under each of their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
