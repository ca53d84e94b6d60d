"""Small networks that are hard to prune: one each for what other tools crash on or get silently wrong.

Each is (model, example inputs, names of layers that must be on an edge). Weights are as torch draws them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Case = tuple[nn.Module, Any, tuple[str, ...]]
CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


class Run(nn.Module):
    """Layers by name and a function of (layers, inputs) as forward: a network in three lines."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def image(channels: int = 3, size: int = 8, batch: int = 2) -> Tensor:
    return torch.randn(batch, channels, size, size)


def conv(inside: int, outside: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, padding=kernel // 2, **options)


@case
def unet() -> Case:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.norm1 = conv(3, 8), nn.BatchNorm2d(8)
            self.down2, self.norm2 = conv(8, 16), nn.BatchNorm2d(16)
            self.middle = conv(16, 16)
            self.up2 = nn.ConvTranspose2d(16, 8, 2, 2)
            self.join2 = conv(8 + 16, 8)
            self.up1 = nn.ConvTranspose2d(8, 8, 2, 2)
            self.join1 = conv(8 + 8, 8)
            self.head = conv(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            one = F.relu(self.norm1(self.down1(x)))
            two = F.relu(self.norm2(self.down2(F.max_pool2d(one, 2))))
            deep = F.relu(self.middle(F.max_pool2d(two, 2)))
            x = F.relu(self.join2(torch.cat([self.up2(deep), two], 1)))
            x = F.relu(self.join1(torch.cat([self.up1(x), one], 1)))
            return self.head(x)

    return UNet(), image(), ("down1", "down2", "middle", "up2", "join2", "up1", "join1")


@case
def group_norm_unet() -> Case:
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.norm = conv(3, 16), nn.GroupNorm(4, 16)
            self.middle, self.norm2 = conv(16, 16), nn.GroupNorm(8, 16)
            self.join = conv(32, 8)
            self.head = conv(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            one = F.silu(self.norm(self.down(x)))
            two = F.silu(self.norm2(self.middle(F.avg_pool2d(one, 2))))
            two = F.interpolate(two, scale_factor=2, mode="nearest")
            return self.head(F.silu(self.join(torch.cat([one, two], 1))))

    return UNet(), image(), ("down", "middle", "join")


@case
def many_outputs() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        x = F.relu(m.stem(x))
        boxes = m.boxes(F.relu(m.neck(x)))
        return {"classes": m.classes(x.mean((2, 3))), "boxes": [boxes, boxes.flatten(1)], "count": 3}

    parts = {"stem": conv(3, 8), "neck": conv(8, 8), "boxes": conv(8, 4, 1), "classes": nn.Linear(8, 5)}
    return Run(forward, **parts), image(), ("stem", "neck")


@case
def called_twice() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        return m.head(F.relu(m.norm(m.block(F.relu(m.norm(m.block(x)))))).mean((2, 3)))

    parts = {"stem": conv(3, 8), "block": conv(8, 8), "norm": nn.BatchNorm2d(8), "head": nn.Linear(8, 3)}
    return Run(forward, **parts), image(), ("stem", "block")


@case
def two_inputs_by_keyword() -> Case:
    def forward(m: Any, *, left: Tensor, right: dict[str, Tensor]) -> Tensor:
        return m.head(F.relu(m.one(left) + m.two(right["x"])))

    parts = {"one": nn.Linear(4, 6), "two": nn.Linear(5, 6), "head": nn.Linear(6, 2)}
    return Run(forward, **parts), {"left": torch.randn(2, 4), "right": {"x": torch.randn(2, 5)}}, ("one", "two")


@case
def tied_linears() -> Case:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Linear(5, 8)
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
            self.two.weight = self.one.weight
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.two(F.relu(self.one(F.relu(self.enter(x)))))))

    return Tied(), torch.randn(2, 5), ("enter", "one")


@case
def tied_embedding() -> Case:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 8)
            self.mix = nn.Linear(8, 16)
            self.back = nn.Linear(16, 8)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            return self.head(x + self.back(F.gelu(self.mix(x))))

    return Tied(), torch.randint(0, 11, (2, 5)), ("embed", "mix")


@case
def functional_parameters() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, m.kernel, m.shift, padding=1))
        x = F.linear(x.mean((2, 3)), m.matrix)
        return F.relu(x) @ m.last

    parts = {
        "kernel": nn.Parameter(torch.randn(8, 3, 3, 3)),
        "shift": nn.Parameter(torch.randn(8)),
        "matrix": nn.Parameter(torch.randn(6, 8)),
        "last": nn.Parameter(torch.randn(6, 4)),
    }
    return Run(forward, **parts), image(), ("kernel", "matrix")


@case
def pixel_shuffle() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.pixel_shuffle(m.one(x), 2)
        return m.three(F.pixel_unshuffle(F.relu(m.two(x)), 2))

    return Run(forward, one=conv(3, 16), two=conv(4, 6), three=conv(24, 2)), image(), ("one", "two")


@case
def channel_shuffle() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.channel_shuffle(F.relu(m.one(x)), 2)
        b, c, h, w = x.shape
        x = m.two(x).view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        return m.three(x)

    return Run(forward, one=conv(3, 8), two=conv(8, 8, groups=2), three=conv(8, 2)), image(), ("one", "two")


@case
def grouped_and_depthwise() -> Case:
    net = nn.Sequential(
        conv(3, 24), nn.ReLU(), conv(24, 24, groups=24), conv(24, 48, groups=24), nn.BatchNorm2d(48), nn.ReLU(),
        conv(48, 12), conv(12, 18, groups=6), nn.ReLU(), conv(18, 16, 1), conv(16, 8, groups=2), nn.ReLU(), conv(8, 2),
    )  # fmt: skip
    return net, image(), ("0", "6", "9")


@case
def transposed() -> Case:
    net = nn.Sequential(
        conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 12, 3), nn.ReLU(), nn.ConvTranspose2d(12, 8, 3, groups=4),
        nn.ReLU(), nn.ConvTranspose2d(8, 8, 3, groups=8), nn.ReLU(), nn.ConvTranspose2d(8, 16, 2, groups=2), nn.ReLU(),
        conv(16, 2),
    )  # fmt: skip
    return net, image(), ("0", "2", "4", "8")


@case
def one_dimension() -> Case:
    net = nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.ConvTranspose1d(8, 6, 2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(12, 2),
    )  # fmt: skip
    return net, torch.randn(2, 3, 16), ("0", "4")


@case
def three_dimensions() -> Case:
    net = nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 6, 1), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip
    return net, torch.randn(2, 2, 4, 8, 8), ("0", "4")


@case
def squeeze_excite() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.stem(x))
        gate = torch.sigmoid(m.up(F.relu(m.down(F.adaptive_avg_pool2d(x, 1)))))
        return m.head((x * gate).mean((2, 3)))

    return (
        Run(forward, stem=conv(3, 16), down=conv(16, 4, 1), up=conv(4, 16, 1), head=nn.Linear(16, 3)),
        image(),
        ("stem", "down"),
    )


@case
def cbam() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.stem(x))
        pooled = m.up(F.relu(m.down(x.mean((2, 3))))) + m.up(F.relu(m.down(x.amax((2, 3)))))
        x = x * torch.sigmoid(pooled)[:, :, None, None]
        where = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
        return m.head((x * torch.sigmoid(m.spatial(where))).mean((2, 3)))

    parts = {
        "stem": conv(3, 16),
        "down": nn.Linear(16, 4),
        "up": nn.Linear(4, 16),
        "spatial": conv(2, 1, 7),
        "head": nn.Linear(16, 3),
    }
    return Run(forward, **parts), image(), ("stem", "down")


@case
def selective_kernel() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.stem(x))
        paths = torch.stack([F.relu(m.small(x)), F.relu(m.large(x))], 1)
        pooled = F.relu(m.squeeze(paths.sum(1).mean((2, 3), keepdim=True)))
        weight = F.softmax(m.choose(pooled).view(x.shape[0], 2, -1, 1, 1), 1)
        return m.head((paths * weight).sum(1).mean((2, 3)))

    parts = {
        "stem": conv(3, 8),
        "small": conv(8, 12),
        "large": conv(8, 12, 5),
        "squeeze": conv(12, 4, 1),
        "choose": conv(4, 24, 1),
        "head": nn.Linear(12, 3),
    }
    return Run(forward, **parts), image(), ("stem", "small", "squeeze")


@case
def lstm() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x, _ = m.rnn(F.relu(m.enter(x)))
        return m.head(x[:, -1])

    parts = {"enter": nn.Linear(4, 6), "rnn": nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True), "head": nn.Linear(16, 3)}
    return Run(forward, **parts), torch.randn(2, 5, 4), ("enter", "rnn")


@case
def lstm_with_projection() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x, (state, _) = m.rnn(x)
        return m.head(x.mean(1)) + m.other(state[-1])

    parts = {"rnn": nn.LSTM(4, 8, batch_first=True, proj_size=5), "head": nn.Linear(5, 3), "other": nn.Linear(5, 3)}
    return Run(forward, **parts), torch.randn(2, 6, 4), ("rnn",)


@case
def gru() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x, state = m.rnn(m.enter(x))
        return m.head(torch.cat([x.mean(0), state[0]], -1))

    parts = {"enter": nn.Linear(4, 6), "rnn": nn.GRU(6, 8, bidirectional=True), "head": nn.Linear(24, 3)}
    return Run(forward, **parts), torch.randn(5, 2, 4), ("enter", "rnn")


@case
def rnn_relu_without_bias() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(m.rnn(x)[0])

    return (
        Run(forward, rnn=nn.RNN(4, 8, nonlinearity="relu", bias=False, batch_first=True), head=nn.Linear(8, 3)),
        torch.randn(2, 5, 4),
        ("rnn",),
    )


@case
def multihead_attention() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.enter(x)
        x = x + m.attention(x, x, x, need_weights=False)[0]
        return m.head(m.norm(x))

    parts = {
        "enter": nn.Linear(6, 16),
        "attention": nn.MultiheadAttention(16, 4, batch_first=True),
        "norm": nn.LayerNorm(16),
        "head": nn.Linear(16, 3),
    }
    return Run(forward, **parts), torch.randn(2, 5, 6), ("enter", "attention")


@case
def multihead_attention_with_weights() -> Case:
    def forward(m: Any, x: Tensor) -> Any:
        x = m.enter(x)
        out, weights = m.attention(x, x, x)
        return m.head(out), weights

    parts = {"enter": nn.Linear(6, 16), "attention": nn.MultiheadAttention(16, 4), "head": nn.Linear(16, 3)}
    return Run(forward, **parts), torch.randn(5, 2, 6), ("enter", "attention")


@case
def transformer_encoder() -> Case:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = nn.Sequential(nn.Linear(6, 16), encoder, nn.Linear(16, 3))
    return net, torch.randn(2, 5, 6), ("0", "1.layers.0.self_attn", "1.layers.0.linear1", "1.layers.1.linear1")


@case
def transformer_decoder() -> Case:
    def forward(m: Any, x: Tensor, memory: Tensor) -> Tensor:
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype, device=x.device), diagonal=1)
        return m.head(m.decoder(m.enter(x), m.enter(memory), tgt_mask=mask))

    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 1)
    parts = {"enter": nn.Linear(6, 16), "decoder": decoder, "head": nn.Linear(16, 3)}
    return Run(forward, **parts), (torch.randn(2, 5, 6), torch.randn(2, 7, 6)), ("enter", "decoder.layers.0.linear1")


class Rotary(nn.Module):
    """Grouped-query attention with rotary embedding, RMS norms, a gated feed-forward and a tied output embedding."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.embed = nn.Embedding(17, width)
        self.q = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.k = nn.ModuleList(nn.Linear(width, groups * self.size, bias=False) for _ in range(depth))
        self.v = nn.ModuleList(nn.Linear(width, groups * self.size, bias=False) for _ in range(depth))
        self.o = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 48, bias=False) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(width, 48, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(48, width, bias=False) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * depth + 1))
        self.head = nn.Linear(width, 17, bias=False)
        self.head.weight = self.embed.weight

    def rotate(self, x: Tensor) -> Tensor:
        half = self.size // 2
        angle = torch.arange(x.shape[2])[:, None] * 0.1 ** (torch.arange(half) / half)
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        b, n, _ = x.shape
        for i in range(len(self.q)):
            h = self.norms[2 * i](x)
            q = self.rotate(self.q[i](h).view(b, n, self.heads, self.size).transpose(1, 2))
            k = self.rotate(self.k[i](h).view(b, n, self.groups, self.size).transpose(1, 2))
            v = self.v[i](h).view(b, n, self.groups, self.size).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o[i](y.transpose(1, 2).reshape(b, n, -1))
            h = self.norms[2 * i + 1](x)
            x = x + self.down[i](F.silu(self.gate[i](h)) * self.up[i](h))
        return self.head(self.norms[-1](x))


@case
def grouped_query_rotary() -> Case:
    return Rotary(), torch.randint(0, 17, (2, 6)), ("embed", "q.0", "up.1")


@case
def grouped_query_repeated() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = m.q(x).view(b, n, 4, 4).transpose(1, 2)
        k = m.k(x).view(b, n, 2, 4).transpose(1, 2)
        v = m.v(x).view(b, n, 2, 4).transpose(1, 2)
        k, v = (t[:, :, None].expand(b, 2, 2, n, 4).reshape(b, 4, n, 4) for t in (k, v))
        y = (q @ k.transpose(-1, -2) * 0.5).softmax(-1) @ v
        return m.o(y.transpose(1, 2).reshape(b, n, 16))

    return (
        Run(forward, q=nn.Linear(6, 16), k=nn.Linear(6, 8), v=nn.Linear(6, 8), o=nn.Linear(16, 3)),
        torch.randn(2, 5, 6),
        ("q",),
    )


@case
def einsum_attention() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (4, 4)) for w in (m.q, m.k, m.v))
        attention = torch.einsum("bnhd,bmhd->bhnm", q, k).mul(0.5).softmax(-1)
        return m.o(torch.einsum("bhnm,bmhd->bnhd", attention, v).flatten(2))

    return (
        Run(forward, q=nn.Linear(6, 16), k=nn.Linear(6, 16), v=nn.Linear(6, 16), o=nn.Linear(16, 3)),
        torch.randn(2, 5, 6),
        ("q",),
    )


@case
def einsum_weights() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(torch.einsum("bchw,oc->bohw", x, m.one))
        return torch.einsum("...chw,oc->...o", x, m.two)

    return Run(forward, one=nn.Parameter(torch.randn(8, 3)), two=nn.Parameter(torch.randn(4, 8))), image(), ("one",)


@case
def linear_attention() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (2, 4)).transpose(1, 2) for w in (m.q, m.k, m.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        y = q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-1, -2))
        return m.o(y.transpose(1, 2).flatten(2))

    return (
        Run(forward, q=nn.Linear(6, 8), k=nn.Linear(6, 8), v=nn.Linear(6, 8), o=nn.Linear(8, 3)),
        torch.randn(2, 5, 6),
        ("q",),
    )


@case
def weight_norm() -> Case:
    norm = nn.utils.parametrizations.weight_norm
    net = nn.Sequential(norm(conv(3, 8)), nn.ReLU(), norm(conv(8, 6)), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 2))
    return net, image(), ("0", "2")


@case
def spectral_norm() -> Case:
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(conv(3, 8)), nn.ReLU(), norm(conv(8, 2))), image(), ("0",)


@case
def weight_standardisation() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        for w in (m.one, m.two):
            mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True)
            x = F.relu(F.conv2d(x, (w - mean) / (var + 1e-5).sqrt(), padding=1))
        return m.head(x)

    parts = {"one": nn.Parameter(torch.randn(8, 3, 3, 3)), "two": nn.Parameter(torch.randn(6, 8, 3, 3)), "head": conv(6, 2)}
    return Run(forward, **parts), image(), ()


@case
def slices_and_assignment() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.one(x).clone()
        x[:, 2:6] = F.relu(x[:, 2:6])
        x[:, -1:] += 1
        y = x[:, 1:7:3]
        return m.two(x) + m.three(y)

    return Run(forward, one=conv(3, 8), two=conv(8, 2), three=conv(2, 2)), image(), ("one",)


@case
def strided_assignment() -> Case:
    """Writing through a strided slice: the axis is left whole, the rest is not."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.one(F.relu(m.zero(x))).clone()
        x[:, ::2] *= 2
        return m.two(x)

    return Run(forward, zero=conv(3, 6), one=conv(6, 8), two=conv(8, 2)), image(), ("zero",)


@case
def lstm_cell() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        state = m.cell(x[:, 0])
        for step in range(1, 3):
            state = m.cell(x[:, step], state)
        return m.head(state[0])

    return Run(forward, cell=nn.LSTMCell(4, 8), head=nn.Linear(8, 3)), torch.randn(2, 3, 4), ("cell",)


@case
def heads_before_batch() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (w(x).view(b, n, 4, 3).permute(2, 0, 1, 3).reshape(4 * b, n, 3) for w in (m.q, m.k, m.v))
        y = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return m.o(y.view(4, b, n, 3).permute(1, 2, 0, 3).reshape(b, n, 12))

    return (
        Run(forward, q=nn.Linear(6, 12), k=nn.Linear(6, 12), v=nn.Linear(6, 12), o=nn.Linear(12, 3)),
        torch.randn(2, 5, 6),
        (),
    )


@case
def tied_by_storage() -> Case:
    one, two = nn.Linear(6, 6), nn.Linear(6, 6)
    two.weight = nn.Parameter(one.weight.data)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), one, nn.ReLU(), two, nn.ReLU(), nn.Linear(6, 2)), torch.randn(2, 4), ("0",)


@case
def more_heads_than_dimensions() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = m.q(x).view(b, n, 8, 3).transpose(1, 2)
        k = m.k(x).view(b, n, 2, 3).transpose(1, 2).repeat_interleave(4, 1)
        v = m.v(x).view(b, n, 2, 3).transpose(1, 2).repeat_interleave(4, 1)
        return m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 24))

    return (
        Run(forward, q=nn.Linear(6, 24), k=nn.Linear(6, 6), v=nn.Linear(6, 6), o=nn.Linear(24, 3)),
        torch.randn(2, 5, 6),
        ("q",),
    )


@case
def unequal_split() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        a, b, c = torch.split(F.relu(m.one(x)), [2, 5, 3], 1)
        return m.head(torch.cat([m.b(b), c, a], 1))

    return Run(forward, one=conv(3, 10), b=conv(5, 4), head=conv(9, 2)), image(), ("one", "b")


@case
def c2f() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        parts = list(m.enter(x).chunk(2, 1))
        for block in m.blocks:
            parts.append(parts[-1] + F.silu(block(parts[-1])))
        return m.leave(torch.cat(parts, 1)).mean((2, 3))

    blocks = nn.ModuleList([conv(6, 6), conv(6, 6)])
    return Run(forward, enter=conv(3, 12), blocks=blocks, leave=conv(24, 3, 1)), image(), ("enter",)


@case
def gated_linear_unit() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(F.glu(m.one(x), 1))

    return Run(forward, one=conv(3, 12), head=conv(6, 2)), image(), ("one",)


@case
def patch_merging() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x).permute(0, 2, 3, 1)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return m.head(m.reduce(m.norm(x)))

    parts = {"stem": conv(3, 8), "norm": nn.LayerNorm(32), "reduce": nn.Linear(32, 16), "head": nn.Linear(16, 3)}
    return Run(forward, **parts), image(), ("stem", "reduce")


@case
def unfolding() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.unfold(F.relu(m.one(x)), 2, stride=2)
        x = m.two(x.transpose(1, 2)).transpose(1, 2)
        return m.head(F.fold(x, (8, 8), 2, stride=2))

    return Run(forward, one=conv(3, 4), two=nn.Linear(16, 24), head=conv(6, 2)), image(), ("one", "two")


@case
def literal_view() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.one(x)).view(-1, 8, 64)
        return m.head(x.view(-1, 512))

    return Run(forward, one=conv(3, 8), head=nn.Linear(512, 2)), image(), ("one",)


@case
def flip_and_roll() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.one(x).flip(1, 2)
        x = m.two(torch.roll(x, (3, 1), (1, 3)))
        return m.three(torch.roll(x.flip(1), 1, 1))

    return Run(forward, one=conv(3, 8), two=conv(8, 6), three=conv(6, 2)), image(), ("one", "two")


@case
def rolled_along_a_mixed_axis() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = torch.matmul(m.mix, m.one(x).permute(0, 2, 3, 1))
        return m.head(torch.roll(x, (1, 2), (1, 2)))

    return Run(forward, one=conv(3, 8), mix=nn.Parameter(torch.randn(8, 8)), head=nn.Linear(8, 2)), image(), ("one",)


@case
def permute_flatten_linear() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(F.relu(m.one(x)).permute(0, 2, 3, 1).flatten(1))

    return Run(forward, one=conv(3, 8), head=nn.Linear(512, 2)), image(), ("one",)


@case
def gram_matrix() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.one(x)).flatten(2)
        return m.head((x.transpose(1, 2) @ x).mean(1))

    return Run(forward, one=conv(3, 8), head=nn.Linear(64, 2)), image(), ("one",)


@case
def detached() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.one(x))
        return m.head(x + m.two(x.detach()))

    return Run(forward, one=conv(3, 8), two=conv(8, 8), head=conv(8, 2)), image(), ("one",)


@case
def residual_from_input() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(x + m.back(F.relu(m.inside(x))))

    return Run(forward, inside=conv(3, 8), back=conv(8, 3), head=conv(3, 2)), image(), ("inside",)


@case
def channel_norms() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.layer(m.one(x))
        x = m.instance(F.relu(m.two(x)))
        x = m.rms(m.three(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = F.normalize(m.four(F.gelu(x)), dim=1)
        return m.head(x)

    parts = {
        "one": conv(3, 8), "layer": nn.LayerNorm([8, 8, 8]), "two": conv(8, 12),
        "instance": nn.InstanceNorm2d(12, affine=True, track_running_stats=True), "three": conv(12, 8),
        "rms": nn.RMSNorm(8), "four": conv(8, 6), "head": conv(6, 2),
    }  # fmt: skip
    return Run(forward, **parts), image(), ("one", "two", "three", "four")


@case
def global_response_norm() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.gelu(m.one(x).permute(0, 2, 3, 1))
        norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        x = m.gamma * (x * norm / (norm.mean(-1, keepdim=True) + 1e-6)) + m.beta + x
        return m.head(x)

    parts = {
        "one": conv(3, 12),
        "gamma": nn.Parameter(torch.randn(1, 1, 1, 12)),
        "beta": nn.Parameter(torch.randn(1, 1, 1, 12)),
        "head": nn.Linear(12, 2),
    }
    return Run(forward, **parts), image(), ("one",)


@case
def softmax_over_channels() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(F.softmax(m.one(x), 1) * m.two(x).logsumexp(1, keepdim=True))

    return Run(forward, one=conv(3, 8), two=conv(3, 6), head=conv(8, 2)), image(), ("one", "two")


@case
def buffer_of_channels() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.one(x) * m.scale[:, None, None] + torch.linspace(0, 1, 8, dtype=x.dtype)[None, :, None, None]
        return m.head(F.relu(x.masked_fill(m.mask[:, None, None], 0.5)))

    parts = {"one": conv(3, 8), "scale": torch.rand(8) + 0.5, "mask": torch.arange(8) % 3 == 0, "head": conv(8, 2)}
    return Run(forward, **parts), image(), ("one",)


@case
def prelu_and_dropout() -> Case:
    net = nn.Sequential(conv(3, 8), nn.PReLU(8), nn.Dropout2d(0.2), conv(8, 6), nn.PReLU(), nn.Dropout(0.5), conv(6, 2))
    return net, image(), ("0", "3")


@case
def frozen_parameters() -> Case:
    net = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6), nn.ReLU(), conv(6, 2))
    for parameter in net[0].parameters():
        parameter.requires_grad = False
    return net, image(), ("0", "3")


@case
def option_a_shortcut() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.stem(x))
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        x = F.relu(m.norm(m.two(F.relu(m.one(x)))) + short)
        return m.head(x.mean((2, 3)))

    parts = {
        "stem": conv(3, 4),
        "one": conv(4, 8, stride=2),
        "two": conv(8, 8),
        "norm": nn.BatchNorm2d(8),
        "head": nn.Linear(8, 3),
    }
    return Run(forward, **parts), image(), ("stem", "one", "two")


@case
def dense_connections() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        parts = [m.stem(x)]
        for norm, layer in zip(m.norms, m.layers, strict=True):
            parts.append(layer(F.relu(norm(torch.cat(parts, 1)))))
        return m.head(torch.cat(parts, 1).mean((2, 3)))

    parts = {
        "stem": conv(3, 6),
        "norms": nn.ModuleList(nn.BatchNorm2d(6 + 4 * i) for i in range(3)),
        "layers": nn.ModuleList(conv(6 + 4 * i, 4) for i in range(3)),
        "head": nn.Linear(18, 2),
    }
    return Run(forward, **parts), image(), ("stem", "layers.0", "layers.1", "layers.2")


@case
def broadcast_from_one_channel() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.one(x))
        return m.head(x * m.attend(x).repeat(1, 8, 1, 1) + x.mean(1, keepdim=True).expand(-1, 8, -1, -1))

    return Run(forward, one=conv(3, 8), attend=conv(8, 1), head=conv(8, 2)), image(), ("one",)


@case
def class_token_and_positions() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1) + m.positions
        qkv = m.qkv(m.norm(x)).reshape(x.shape[0], 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], 5, 16)
        x = x + m.scale * m.out(y)
        return m.head(x[:, 0])

    parts = {
        "patch": nn.Conv2d(3, 16, 4, 4), "token": nn.Parameter(torch.randn(1, 1, 16)),
        "positions": nn.Parameter(torch.randn(1, 5, 16)), "norm": nn.LayerNorm(16), "qkv": nn.Linear(16, 48),
        "out": nn.Linear(16, 16), "scale": nn.Parameter(torch.randn(16)), "head": nn.Linear(16, 3),
    }  # fmt: skip
    return Run(forward, **parts), image(), ("patch", "qkv")


@case
def mixture_by_bmm() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.enter(x))
        experts = torch.bmm(x.expand(3, -1, -1), m.experts) + m.shift[:, None]
        return (m.route(x).softmax(-1).t()[:, :, None] * torch.baddbmm(m.bias, F.relu(experts), m.leave)).sum(0)

    parts = {
        "enter": nn.Linear(5, 8), "experts": nn.Parameter(torch.randn(3, 8, 6)), "shift": nn.Parameter(torch.randn(3, 6)),
        "leave": nn.Parameter(torch.randn(3, 6, 4)), "bias": nn.Parameter(torch.randn(3, 1, 4)), "route": nn.Linear(8, 3),
    }  # fmt: skip
    return Run(forward, **parts), torch.randn(2, 5), ("enter", "experts")


@case
def bilinear_layer() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(m.bilinear(F.relu(m.one(x)), F.relu(m.two(x))))

    return (
        Run(forward, one=nn.Linear(4, 6), two=nn.Linear(4, 5), bilinear=nn.Bilinear(6, 5, 7), head=nn.Linear(7, 2)),
        torch.randn(3, 4),
        ("one", "two", "bilinear"),
    )


@case
def indexed_channels() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.one(x)
        order = torch.tensor([7, 3, 1, 0, 2, 6])
        x = m.two(x[:, order])
        return m.three(torch.index_select(x, 1, m.pick))

    return Run(forward, one=conv(3, 8), two=conv(6, 6), three=conv(3, 2), pick=torch.tensor([4, 0, 2])), image(), ("one", "two")


@case
def batch_merged_windows() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        x = m.stem(x).permute(0, 2, 3, 1)
        x = x.view(b, h // 4, 4, w // 4, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 8)
        q, k, v = m.qkv(x).chunk(3, -1)
        q, k, v = (t.view(-1, 16, 2, 4).transpose(1, 2) for t in (q, k, v))
        table = m.table[m.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
        x = m.out(((q @ k.transpose(-2, -1) + table).softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, 8))
        x = x.view(b, h // 4, w // 4, 4, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, 8)
        return m.head(torch.roll(x, (1, 1), (1, 2)))

    parts = {
        "stem": conv(3, 8), "qkv": nn.Linear(8, 24), "table": nn.Parameter(torch.randn(9, 2)),
        "index": torch.randint(0, 9, (16, 16)), "out": nn.Linear(8, 8), "head": nn.Linear(8, 2),
    }  # fmt: skip
    return Run(forward, **parts), image(), ("stem", "out")


@case
def drop_path() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        inside = m.norm(m.two(F.relu(m.one(x))))
        if m.training:
            inside = inside * torch.empty(x.shape[0], 1, 1, 1, dtype=x.dtype).bernoulli_(0.8) / 0.8
        return m.head(F.dropout(x + inside, 0.1, m.training))

    parts = {"stem": conv(3, 8), "one": conv(8, 6), "two": conv(6, 8), "norm": nn.BatchNorm2d(8), "head": conv(8, 2)}
    return Run(forward, **parts), image(), ("stem", "one")


@case
def old_weight_norm() -> Case:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.utils.weight_norm(conv(3, 8)), nn.ReLU(), conv(8, 2))
    return net, image(), ("0",)


@case
def padding_modes() -> Case:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding="same"),
        nn.ReLU(),
        nn.ZeroPad2d(1),
        nn.ReplicationPad2d(1),
        conv(6, 2),
    )
    return net, image(), ("0", "2", "4")


@case
def hook_that_changes_the_result() -> Case:
    net = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.ReLU(), conv(6, 2))
    net[0].register_forward_hook(lambda module, inputs, output: output * 2 + 1)
    net[2].register_forward_pre_hook(lambda module, inputs: (inputs[0] - 1,))
    return net, image(), ("0", "2")


@case
def other_output_size() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.down(x))
        return m.head(m.up(x, output_size=(8, 8)))

    return (
        Run(forward, down=conv(3, 8, stride=2), up=nn.ConvTranspose2d(8, 6, 3, 2, 1), head=conv(6, 2)),
        image(),
        ("down", "up"),
    )


@case
def cumulative_batch_norm() -> Case:
    net = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), conv(8, 2))
    return net, image(), ("0",)


@case
def pruned_by_torch() -> Case:
    from torch.nn.utils import prune

    net = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 2))
    prune.random_unstructured(net[0], "weight", 0.3)
    return net, image(), ("0",)


@case
def autocast_region() -> Case:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return m.two(F.relu(m.one(x)))

    return Run(forward, one=conv(3, 8), two=conv(8, 2)), image(), ("one",)


@case
def checkpointed() -> Case:
    from torch.utils.checkpoint import checkpoint

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.three(checkpoint(lambda y: F.relu(m.two(F.relu(m.one(y)))), x, use_reentrant=False))

    return Run(forward, one=conv(3, 8), two=conv(8, 6), three=conv(6, 2)), image(), ("one", "two")


class Scaled(torch.autograd.Function):
    """Saves its inputs for a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return gradients[0] * scale.view(1, -1, 1, 1), (gradients[0] * x).sum((0, 2, 3))


@case
def autograd_function() -> Case:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return Scaled.apply(x, self.weight)

    return nn.Sequential(conv(3, 8), Scale(), nn.ReLU(), conv(8, 2)), image(), ("0",)


@case
def positions_of_the_batch() -> Case:
    """Integers made for every example: they cannot be computed once and for all."""

    def forward(m: Any, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0], device=x.device)
        last = torch.full((x.shape[0],), x.shape[1] - 1, device=x.device)
        return m.two(F.relu(m.one(x))[rows, last])

    return Run(forward, one=nn.Linear(4, 8), two=nn.Linear(8, 3)), torch.randn(2, 5, 4), ("one",)
