"""Random networks and random masks for them, as Hypothesis strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import gator


@dataclass(frozen=True)
class Op:
    """One step of a random network: its kind, the earlier results it reads, and two numbers for whatever it needs."""

    kind: str
    left: int
    right: int
    a: int
    b: int


KINDS = (
    "conv", "conv", "grouped", "depthwise", "transpose", "pointwise_norm", "batch_norm", "group_norm", "layer_norm",
    "relu", "sigmoid", "add", "add", "mul", "cat", "cat", "split", "squeeze_excite", "pool", "upsample", "attention",
    "residual", "shuffle", "flip", "pad", "mean_channel", "dense", "twice",
)  # fmt: skip


class RandomNetwork(nn.Module):
    """Keeps every result; a step takes earlier ones, fits them to one shape if it must, and adds its own."""

    def __init__(self, ops: list[Op], channels: int) -> None:
        super().__init__()
        self.ops = ops
        self.stem = nn.Conv2d(2, channels, 3, padding=1)
        self.layers = nn.ModuleDict()
        widths, sizes = [channels], [4]
        for number, op in enumerate(ops):
            i, j = op.left % len(widths), op.right % len(widths)
            made, width, size = self._build(op, widths[i], sizes[i], widths[j], sizes[j])
            for name, layer in made.items():
                self.layers[f"{number}_{name}"] = layer
            widths.append(width)
            sizes.append(size)
        self.head = nn.Linear(widths[-1], 3)

    def _build(self, op: Op, c: int, s: int, d: int, t: int) -> tuple[dict[str, nn.Module], int, int]:
        new = op.a % 6 + 2
        if op.kind in ("conv", "pointwise_norm"):
            kernel = 1 if op.kind == "pointwise_norm" else 3
            return {"conv": nn.Conv2d(c, new, kernel, padding=kernel // 2, bias=op.b % 2 == 0)}, new, s
        if op.kind == "grouped":
            groups = next(g for g in (op.b % 4 + 1, 2, 1) if c % g == 0)
            return {"conv": nn.Conv2d(c, groups * (op.a % 3 + 1), 3, padding=1, groups=groups)}, groups * (op.a % 3 + 1), s
        if op.kind == "depthwise":
            return {"conv": nn.Conv2d(c, c * (op.a % 2 + 1), 3, padding=1, groups=c)}, c * (op.a % 2 + 1), s
        if op.kind == "transpose":
            return {"conv": nn.ConvTranspose2d(c, new, 3, padding=1)}, new, s
        if op.kind == "batch_norm":
            return {"norm": nn.BatchNorm2d(c)}, c, s
        if op.kind == "group_norm":
            groups = next(g for g in (op.a % 4 + 1, 2, 1) if c % g == 0)
            return {"norm": nn.GroupNorm(groups, c)}, c, s
        if op.kind == "layer_norm":
            return {"norm": nn.LayerNorm(c)}, c, s
        if op.kind in ("add", "mul"):
            return ({} if c == d else {"fit": nn.Conv2d(d, c, 1)}), c, s
        if op.kind == "cat":
            return {}, c + d, s
        if op.kind == "split":
            return {}, (max(1, c // 2) if c > 1 else 1), s
        if op.kind == "squeeze_excite":
            return {"down": nn.Linear(c, new), "up": nn.Linear(new, c)}, c, s
        if op.kind == "pool":
            return {}, c, max(1, s // 2)
        if op.kind == "upsample":
            return {}, c, min(8, 2 * s)
        if op.kind == "attention":
            heads, size = op.a % 3 + 1, op.b % 3 + 1
            return {"qkv": nn.Linear(c, 3 * heads * size), "out": nn.Linear(heads * size, c)}, c, s
        if op.kind == "residual":
            return (
                {"one": nn.Conv2d(c, new, 3, padding=1), "norm": nn.BatchNorm2d(c), "two": nn.Conv2d(new, c, 3, padding=1)},
                c,
                s,
            )
        if op.kind == "pad":
            return {}, c + op.a % 3 + op.b % 2, s
        if op.kind == "dense":
            return {"flat": nn.Linear(c * s * s, new), "back": nn.Linear(new, c)}, c, s
        if op.kind == "twice":
            return {"conv": nn.Conv2d(c, c, 1)}, c, s
        return {}, c, s

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for number, op in enumerate(self.ops):
            left, right = values[op.left % len(values)], values[op.right % len(values)]
            values.append(self._step(op, left, right, lambda name, n=number: self.layers[f"{n}_{name}"]))
        return self.head(values[-1].mean((2, 3)))

    def _step(self, op: Op, x: Tensor, y: Tensor, layer: Any) -> Tensor:
        if op.kind in ("conv", "pointwise_norm", "grouped", "depthwise", "transpose"):
            return layer("conv")(x)
        if op.kind in ("batch_norm", "group_norm"):
            return layer("norm")(x)
        if op.kind == "layer_norm":
            return layer("norm")(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if op.kind in ("add", "mul", "cat"):
            if y.shape[2:] != x.shape[2:]:
                y = F.adaptive_avg_pool2d(y, x.shape[2:])
            if op.kind == "cat":
                return torch.cat([x, y], 1)
            y = y if y.shape[1] == x.shape[1] else layer("fit")(y)
            return x + y if op.kind == "add" else x * torch.sigmoid(y)
        if op.kind == "split":
            first = max(1, x.shape[1] // 2)
            return x[:, :first] if op.a % 2 else x[:, x.shape[1] - first :]
        if op.kind == "squeeze_excite":
            gate = torch.sigmoid(layer("up")(F.relu(layer("down")(x.mean((2, 3))))))
            return x * gate[:, :, None, None]
        if op.kind == "pool":
            return F.max_pool2d(x, 2) if x.shape[-1] > 1 else x
        if op.kind == "upsample":
            return F.interpolate(x, scale_factor=2, mode="bilinear") if x.shape[-1] < 8 else x
        if op.kind == "attention":
            heads, size = op.a % 3 + 1, op.b % 3 + 1
            b, c, h, w = x.shape
            q, k, v = layer("qkv")(x.flatten(2).transpose(1, 2)).view(b, h * w, 3, heads, size).permute(2, 0, 3, 1, 4).unbind(0)
            out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, heads * size)
            return x + layer("out")(out).transpose(1, 2).reshape(b, c, h, w)
        if op.kind == "residual":
            return F.relu(x + layer("norm")(layer("two")(F.relu(layer("one")(x)))))
        if op.kind == "shuffle":
            return F.channel_shuffle(x, 2) if x.shape[1] % 2 == 0 else x
        if op.kind == "flip":
            return torch.roll(x.flip(1), op.a, 1)
        if op.kind == "pad":
            return F.pad(x, (0, 0, 0, 0, op.a % 3, op.b % 2), value=float(op.b % 3))
        if op.kind == "mean_channel":
            return x * x.mean(1, keepdim=True) + x.amax(1, keepdim=True)
        if op.kind == "dense":
            b, c, h, w = x.shape
            return x + layer("back")(F.relu(layer("flat")(x.reshape(b, c * h * w))))[:, :, None, None]
        if op.kind == "twice":
            return layer("conv")(F.relu(layer("conv")(x)))
        return F.relu(x) if op.kind == "relu" else torch.sigmoid(x)


OPS = st.lists(
    st.builds(Op, st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 9), st.integers(0, 11), st.integers(0, 5)),
    min_size=1,
    max_size=9,
)


def draw_masks(graph: gator.Hypergraph, seed: int, zero: float) -> dict[str, np.ndarray]:
    """Random masks; a share `zero` of the edges loses every channel."""
    random = np.random.default_rng(seed)
    kept = {}
    for edge in graph.edges:
        mask = random.random(edge.width) < random.choice([0.3, 0.6, 0.9])
        if random.random() < zero:
            mask[:] = False
        elif not mask.any():
            mask[random.integers(edge.width)] = True
        kept[edge.name] = mask
    return kept
