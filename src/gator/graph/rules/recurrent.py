"""Rules for LSTM, GRU and RNN: hidden unit j is row j of every gate, column j of the recurrent weight and of the state.

All layers and directions share the state tensor, so unit j is kept or removed in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gator.graph.labels import Axes
from gator.graph.rules.table import Scope, rule

aten = torch.ops.aten
GATES = {aten.lstm: 4, aten.gru: 3, aten.rnn_tanh: 1, aten.rnn_relu: 1}


@rule(*GATES)
def _recurrent(scope: Scope) -> Sequence[Axes]:
    gates = GATES[scope.call.packet]
    if "data" in scope.call.args or "batch_sizes" in scope.call.args:
        return _packed_sequence(scope)
    x = scope.axes("input")
    params = scope.get("params")
    directions = 2 if scope.get("bidirectional") else 1
    has_biases = scope.get("has_biases")
    is_lstm = scope.call.packet is aten.lstm
    states = [("hx", i) for i in range(2)] if is_lstm else [("hx", None)]
    hidden = scope.shape("params", 1)[0] // gates
    projected = is_lstm and scope.shape(*states[0])[-1] != hidden
    per_cell = 2 + (2 if has_biases else 0) + (1 if projected else 0)
    unit = scope.fresh(hidden)
    rows = np.tile(unit, gates)
    out = scope.fresh(scope.shape(*states[0])[-1]) if projected else unit
    for position, (name, index) in enumerate(states):
        axes = scope.axes(name, index)
        scope.fix(axes[0], "layers and directions")
        scope.tie(axes[-1], out if position == 0 else unit, "the state's width")
    for cell in range(len(params) // per_cell):
        start = cell * per_cell
        first = cell < directions
        into = x[-1] if first else np.tile(out, directions)
        weight_ih, weight_hh = scope.axes("params", start), scope.axes("params", start + 1)
        scope.tie(into, weight_ih[1], "input channels of the weight")
        scope.tie(out, weight_hh[1], "input channels of the recurrent weight")
        for offset in range(per_cell - (1 if projected else 0)):
            scope.tie(rows, scope.axes("params", start + offset)[0], "the gates of one unit")
        for offset in (0, 1):
            scope.produces("params", 0, start + offset)
            scope.consumes("params", 1, start + offset)
            if not (first and offset == 0):
                scope.read("params", 1, "sum", start + offset)
        if projected:
            last = start + per_cell - 1
            scope.tie(scope.axes("params", last)[0], out, "output channels of the projection")
            scope.tie(scope.axes("params", last)[1], unit, "input channels of the projection")
            scope.read("params", 1, "sum", last)
            scope.consumes("params", 1, last)
            scope.produces("params", 0, last)
    scope.read("input", len(x) - 1, "sum")
    result = [(*x[:-1], np.tile(out, directions))]
    for position, (name, index) in enumerate(states):
        axes = scope.axes(name, index)
        result.append((None, *axes[1:-1], out if position == 0 else unit))
    return result


def _packed_sequence(scope: Scope) -> Sequence[Axes]:
    """Packed sequences are not followed: all axes are fixed."""
    for _, value in scope.call.tensors():
        for axis in scope.analysis.axes[value]:
            scope.fix(axis, "a packed sequence")
    program = scope.analysis.program
    return [(None,) * len(program.values[v].shape) if v is not None else () for v in scope.call.outputs]
