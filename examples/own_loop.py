"""Your own training loop, with AdamW, autocast and an average of the weights (EMA): three lines are added to it.

    pip install 'torch-gator[train]'
    python examples/own_loop.py

Shows that the pruned network has half of the MACs, that the average of its weights became smaller with it, and what both still
recognise of scikit-learn's handwritten digits.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gator

EPOCHS, GATED, BATCH, LR = 16, 8, 64, 2e-3  # gates are on in the first half of the epochs

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
train = torch.arange(len(labels)) % 4 > 0


def block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


model = nn.Sequential(
    block(1, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
)
dense_macs = gator.measure(model, images[:1]).macs

steps_per_epoch = int(train.sum()) // BATCH
optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LR, total_steps=EPOCHS * steps_per_epoch)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98), use_buffers=True)
# New: the gates, which learn what every channel is worth.
pruner = gator.Pruner(model, images[:1], target=0.5, steps=GATED * steps_per_epoch)

for epoch in range(EPOCHS):
    model.train()
    order = train.nonzero().flatten()[torch.randperm(int(train.sum()))]
    for batch in order[: steps_per_epoch * BATCH].split(BATCH):
        x, y = images[batch], labels[batch]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
            if epoch < GATED:
                loss = loss + pruner.loss()  # new
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if epoch < GATED:
            pruner.step()  # new
        ema.update_parameters(model)
    if epoch < GATED:
        # New: what is closed leaves the network, the optimizer and the average, so that the next epoch is cheaper.
        del loss
        optimizer.zero_grad()
        pruner.shrink_(optimizer, ema)
    if epoch == GATED - 1:
        print(pruner.summary())
        pruner.detach()


@torch.no_grad()
def accuracy(network: nn.Module) -> float:
    network.eval()
    return float((network(images[~train]).argmax(1) == labels[~train]).float().mean())


small_macs = gator.measure(model, images[:1]).macs
print(f"MACs {dense_macs:,} -> {small_macs:,}; accuracy {accuracy(model):.3f}, of the average {accuracy(ema.module):.3f}")

assert small_macs <= 0.5 * dense_macs
assert gator.measure(ema.module, images[:1]).macs == small_macs
assert accuracy(model) > 0.9
assert accuracy(ema.module) > 0.9
