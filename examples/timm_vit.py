"""A vision transformer of timm: attention loses whole heads, the MLPs lose channels, and timm's EMA follows.

pip install 'torch-gator[train,zoo]'
python examples/timm_vit.py
"""

import timm
import torch
from sklearn.datasets import load_digits
from timm.utils import ModelEmaV3
from torch.nn import functional

import gator

STEPS, GATED, LR = 420, 140, 3e-3

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
train = (torch.arange(len(labels)) % 4 > 0).nonzero().flatten()
test = (torch.arange(len(labels)) % 4 == 0).nonzero().flatten()

model = timm.create_model(
    "vit_tiny_patch16_224", img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=64, depth=3, num_heads=8
)
heads = [block.attn.num_heads for block in model.blocks]
dense = gator.measure(model, images[:1])

# fixed= leaves the channels of the residual stream as they are, so that the embedding keeps its width.
graph = gator.trace(model, images[:1], fixed=["patch_embed.proj"], keep_class=True)
pruner = gator.Pruner(model, graph=graph, target=0.6, steps=GATED, keep_class=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
ema = ModelEmaV3(model, decay=0.95)
model.train()
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = LR * min(1, (step + 1) / 20, (STEPS - step) / 120)
    batch = train[torch.randint(len(train), (64,))]
    loss = functional.cross_entropy(model(images[batch]), labels[batch])
    if step < GATED:
        loss = loss + pruner.loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < GATED:
        pruner.step()
    if step == GATED - 1:  # the target is reached: the network, the optimizer and the EMA become smaller
        del loss
        optimizer.zero_grad()
        pruner.shrink_(optimizer, ema)
        pruner.detach()
    ema.update(model, step)

small = ema.module.eval()
with torch.no_grad():
    accuracy = float((small(images[test]).argmax(1) == labels[test]).float().mean())
left = gator.measure(small, images[:1])
print(f"heads {heads} -> {[block.attn.num_heads for block in small.blocks]}")
print(f"MLPs  {[4 * 64] * 3} -> {[block.mlp.fc1.out_features for block in small.blocks]}")
print(f"MACs {dense.macs:,} -> {left.macs:,}; accuracy of the EMA {accuracy:.3f}")

assert type(small) is type(model)
assert left.macs <= 0.6 * dense.macs
assert accuracy > 0.8
