"""Lightning: one callback in the Trainer, and the network of the LightningModule is smaller after `fit`.

pip install 'torch-gator[train,lightning]'
python examples/lightning_digits.py
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import gator
from gator import zoo
from gator.integrations.lightning import PruneCallback


class Classifier(pl.LightningModule):
    """Nothing in it knows about pruning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = zoo.build("digits:resnet").model  # any network

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
test = torch.arange(len(labels)) % 4 == 0

pl.seed_everything(0)
module = Classifier()
dense = gator.measure(module.net, images[:1]).macs
loader = DataLoader(TensorDataset(images[~test], labels[~test]), batch_size=128, shuffle=True)
test_loader = DataLoader(TensorDataset(images[test], labels[test]), batch_size=500)

prune = PruneCallback(target=0.5, network="net", example_inputs=images[:1])
# A checkpoint of this trainer holds the gates and the plan of what was cut: fit(..., ckpt_path=...) resumes on a fresh module.
trainer = pl.Trainer(max_epochs=8, callbacks=[prune], accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(module, loader)
(result,) = trainer.validate(module, test_loader)

small = gator.measure(module.net, images[:1]).macs
print(f"MACs {dense:,} -> {small:,}; accuracy {result['accuracy']:.3f}")
gator.save(module.net, "digits-small.safetensors")

assert small <= 0.5 * dense
assert result["accuracy"] > 0.8
