"""A network of torchvision: ResNet-18, residual connections included, at 0.4 of its MACs and in its own class.

    pip install 'torch-gator[train,zoo]'
    python examples/torchvision_resnet.py

Shows training, gates and fine-tuning one after the other, as for a network with weights that you have: here those of the first
part, because this example downloads nothing.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torchvision.models import ResNet, resnet18

import gator

torch.manual_seed(0)
digits = load_digits()
images = functional.interpolate(torch.tensor(digits.images, dtype=torch.float32)[:, None], 32).expand(-1, 3, -1, -1) / 16
labels = torch.tensor(digits.target)
train = torch.arange(len(labels)) % 4 > 0
x = images[:1]  # costs are counted for one image


def steps(network: nn.Module, count: int, lr: float, pruner: gator.Pruner | None = None) -> None:
    """Train a network for so many steps, with gates if there is a pruner."""
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
    indices = train.nonzero().flatten()
    network.train()
    for _ in range(count):
        batch = indices[torch.randint(len(indices), (64,))]
        loss = functional.cross_entropy(network(images[batch]), labels[batch])
        if pruner is not None:
            loss = loss + pruner.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if pruner is not None:
            pruner.step()


@torch.no_grad()
def accuracy(network: nn.Module) -> float:
    network.eval()
    return float((network(images[~train]).argmax(1) == labels[~train]).float().mean())


model = resnet18(num_classes=10)  # yours: resnet18(weights="DEFAULT")
steps(model, 40, lr=0.05)
dense = accuracy(model)

# keep_class=True removes only what leaves torchvision's own ResNet working, so that your other code still finds its layers.
pruner = gator.Pruner(model, x, target=0.4, steps=40, keep_class=True, min_width=8)
steps(model, 40, lr=0.05, pruner=pruner)
small = pruner.cut()
after_cut = accuracy(small)
steps(small, 30, lr=0.02)

share = gator.measure(small, x).macs / gator.measure(model, x).macs
print(pruner.summary())
print(f"accuracy {dense:.3f}; at {share:.2f} of the MACs {after_cut:.3f}, fine-tuned {accuracy(small):.3f}")

gator.save(small, "resnet18-small.safetensors")
again = gator.load("resnet18-small.safetensors", resnet18(num_classes=10))
assert isinstance(small, ResNet)
assert share <= 0.4
assert accuracy(small) > 0.9
assert accuracy(again) == accuracy(small)
