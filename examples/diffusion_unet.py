"""A diffusion model: a U-Net that is told the time, pruned under the denoising loss that it is trained with.

    pip install 'torch-gator[train]'
    python examples/diffusion_unet.py

Shows that the smaller network removes noise about as well as the original, and that it draws digits step by step.
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import gator

TIMES = 100  # steps from a picture to noise
signal = torch.cos(torch.linspace(0.02, 1.55, TIMES))  # what is left of the picture at a time; the rest is noise


class Block(nn.Module):
    """Two convolutions with group norms and a shortcut; the time shifts the channels in between."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inside), nn.GroupNorm(4, outside)
        self.conv1, self.conv2 = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
        self.shift = nn.Linear(time, outside)
        self.shortcut = nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x))) + self.shift(time)[:, :, None, None]
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(y)))


class Denoiser(nn.Module):
    """Predicts the noise in a picture of 8x8 pixels at a time between 0 and 99."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Embedding(TIMES, width), nn.Linear(width, 2 * width), nn.SiLU())
        self.into, self.out = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.down, self.bottom = Block(width, 2 * width, 2 * width), Block(2 * width, 2 * width, 2 * width)
        self.up = Block(3 * width, width, 2 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        told = self.time(time)
        first = self.into(x)
        low = self.bottom(self.down(functional.avg_pool2d(first, 2), told), told)
        up = torch.cat([functional.interpolate(low, scale_factor=2.0), first], 1)
        return self.out(functional.silu(self.up(up, told)))


digits = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
train, test = digits[:1500], digits[1500:]


def denoising_loss(network: nn.Module, pictures: Tensor) -> Tensor:
    """The usual one: add noise of a random strength, and let the network say what was added."""
    time, noise = torch.randint(TIMES, (len(pictures),)), torch.randn_like(pictures)
    kept = signal[time][:, None, None, None]
    return functional.mse_loss(network(kept * pictures + (1 - kept**2).sqrt() * noise, time), noise)


def steps(network: nn.Module, count: int, lr: float, pruner: gator.Pruner | None = None) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    network.train()
    for step in range(count):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1, 2 * (count - step) / count)
        loss = denoising_loss(network, train[torch.randint(len(train), (64,))])
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if pruner is not None:
            pruner.step()


@torch.no_grad()
def tested(network: nn.Module) -> float:
    torch.manual_seed(1)  # the same noise for all networks
    return float(sum(denoising_loss(network.eval(), test) for _ in range(20)) / 20)


@torch.no_grad()
def draw(network: nn.Module, count: int) -> Tensor:
    """From noise to pictures, without randomness on the way (DDIM)."""
    x = torch.randn(count, 1, 8, 8)
    for time in reversed(range(TIMES)):
        noise = network(x, torch.full((count,), time))
        picture = ((x - (1 - signal[time] ** 2).sqrt() * noise) / signal[time]).clamp(-1, 1)
        before = signal[time - 1] if time else torch.tensor(1.0)
        x = before * picture + (1 - before**2).sqrt() * noise
    return x


torch.manual_seed(0)
model = Denoiser()
steps(model, 300, lr=2e-3)
untrained, dense = tested(Denoiser()), tested(model)

# Two inputs: the noisy picture, and the time as a whole number, of which only the shape matters here.
example = (train[:1], torch.zeros(1, dtype=torch.long))
pruned = copy.deepcopy(model)
pruner = gator.Pruner(pruned, example, target=0.5, steps=150)
steps(pruned, 150, lr=1e-3, pruner=pruner)
small = pruner.cut()
steps(small, 150, lr=1e-3)

share = gator.measure(small, example).macs / gator.measure(model, example).macs
pictures = draw(small, 4)
for row in pictures[:, 0].permute(1, 0, 2).reshape(8, 32):
    print("".join(" .:*#"[int((value + 1) * 2.49)] for value in row.clamp(-1, 1)))
print(f"denoising loss: untrained {untrained:.3f}, dense {dense:.3f}, at {share:.2f} of the MACs {tested(small):.3f}")

assert share <= 0.5
assert tested(small) < 1.25 * dense < 0.5 * untrained
assert 0.2 < float(pictures.std()) < 1.5
