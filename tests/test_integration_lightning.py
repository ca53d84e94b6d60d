"""The callback for the Trainer of Lightning: runs, resumes from its checkpoints, and explains bad use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import gator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def library(torchvision):
    pytest.importorskip("lightning")
    from gator.integrations import lightning

    return lightning


def module(library, seed=0):
    from gator import zoo

    class Classifier(library.lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = zoo.build("digits:resnet").model

        def training_step(self, batch, _):
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    torch.manual_seed(seed)
    return Classifier()


def loader():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 1, 8, 8, generator=generator), torch.randint(0, 10, (64,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)


def trainer(library, folder, callbacks, **settings):
    settings = {"max_epochs": 4, "logger": False, "enable_progress_bar": False, "enable_model_summary": False, **settings}
    return library.lightning.Trainer(accelerator="cpu", default_root_dir=folder, callbacks=callbacks, **settings)


def callback(library, **settings):
    return library.PruneCallback(
        **{"network": "net", "example_inputs": torch.randn(2, 1, 8, 8), "target": 0.6, "gated": 0.6, **settings}
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainer_prunes(library, tmp_path, accumulate):
    model = module(library)
    before = gator.measure(model.net, torch.randn(1, 1, 8, 8)).macs
    prune = callback(library)
    trainer(library, tmp_path, [prune], accumulate_grad_batches=accumulate).fit(model, loader())
    assert prune.pruner.finished
    assert prune.pruner.steps_taken == 8 // accumulate
    assert gator.measure(model.net, torch.randn(1, 1, 8, 8)).macs <= 0.6 * before
    assert not model.net._forward_pre_hooks
    gator.save(model.net, tmp_path / "small.safetensors")


def test_a_resumed_run_ends_with_the_same_network(library, tmp_path):
    whole = module(library)
    torch.manual_seed(7)
    trainer(library, tmp_path / "whole", [callback(library), draws(library)]).fit(whole, loader())
    first = module(library)
    torch.manual_seed(7)
    saving = library.lightning.callbacks.ModelCheckpoint(tmp_path / "parts", save_last=True)
    stop = stopping(library)
    with pytest.raises(RuntimeError, match="killed"):
        trainer(library, tmp_path, [callback(library), draws(library), saving, stop]).fit(first, loader())
    path = tmp_path / "parts" / "last.ckpt"
    second = module(library, seed=5)
    fresh = sum(p.numel() for p in second.net.parameters())
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert sum(tensor.numel() for name, tensor in saved.items() if "running" not in name) < 0.9 * fresh  # it had shrunk by then
    trainer(library, tmp_path, [callback(library), draws(library)]).fit(second, loader(), ckpt_path=path)
    assert gator.plan(whole.net) == gator.plan(second.net)
    for one, other in zip(whole.net.state_dict().values(), second.net.state_dict().values(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def draws(library):
    class Draws(library.lightning.Callback):
        """Lightning does not save the random state: the draws of an epoch are made to depend on the epoch."""

        def on_train_epoch_start(self, trainer, pl_module):
            torch.manual_seed(trainer.current_epoch)

    return Draws()


def stopping(library):
    class Stop(library.lightning.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                raise RuntimeError("killed")

    return Stop()


def test_without_shrinking_the_network_is_cut_at_the_end(library, tmp_path):
    class Widths(library.lightning.Callback):
        """Of the network at the end of every epoch."""

        def __init__(self):
            self.found = []

        def on_train_epoch_start(self, trainer, pl_module):
            self.found.append(sum(p.numel() for p in pl_module.net.parameters()))

    whole, smaller = Widths(), Widths()
    trainer(library, tmp_path, [callback(library, shrink=False), whole]).fit(module(library), loader())
    trainer(library, tmp_path, [callback(library), smaller]).fit(module(library), loader())
    assert len(set(whole.found)) == 1
    assert smaller.found[-1] < smaller.found[0] == whole.found[0]


DDP = """
import sys, torch
{preparation}
from test_integration_lightning import callback, loader, module, trainer
from gator.integrations import lightning as library

run = trainer(library, sys.argv[1], [prune := callback(library)], strategy="ddp", devices=2)
network = module(library)
run.fit(network, loader())
torch.save({{"kept": prune.pruner.kept, "widths": [list(p.shape) for p in network.net.parameters()],
            "weights": network.net.state_dict(), "steps": prune.pruner.steps_taken}}, f"{{sys.argv[1]}}/{{run.global_rank}}.pt")
"""


def test_two_processes_end_with_the_same_network(library, tmp_path):
    preparation = "from stub_torchvision import make_importable; make_importable()"
    (tmp_path / "run.py").write_text(DDP.format(preparation=preparation))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", str(tmp_path / "run.py"), str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert result.returncode == 0, result.stderr
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert one["widths"] == other["widths"]
    assert one["steps"] == 4  # half of the batches each
    assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"] if "running" not in name)
    dense = [list(p.shape) for p in module(library).net.parameters()]
    assert one["widths"] != dense


def test_bad_use_is_explained(library, tmp_path):
    with pytest.raises(gator.GatorError, match="a second PruneCallback"):
        trainer(library, tmp_path, [callback(library), TwiceOf(library)]).fit(module(library), loader())
    prune = callback(library)
    gator.Pruner((gated := module(library)).net, torch.randn(2, 1, 8, 8), target=0.5, steps=3)
    with pytest.raises(gator.GatorError, match="gates on already"):
        trainer(library, tmp_path, [prune]).fit(gated, loader())
    with pytest.raises(gator.GatorError, match="example_input_array"):
        trainer(library, tmp_path, [callback(library, example_inputs=None)]).fit(module(library), loader())
    with pytest.raises(gator.GatorError, match="max_epochs or max_steps"):
        trainer(library, tmp_path, [callback(library)], max_epochs=-1).fit(module(library), loader())
    with pytest.raises(gator.GatorError, match="gated=0"):
        callback(library, gated=0)


def test_a_network_that_is_replaced_is_noticed(library, tmp_path):
    class Replace(library.lightning.Callback):
        def on_train_batch_start(self, trainer, pl_module, *_):
            pl_module.net = module(library).net

    with pytest.raises(gator.GatorError, match="'net' was replaced"):
        trainer(library, tmp_path, [callback(library), Replace()]).fit(module(library), loader())


def test_checkpoints_that_do_not_fit_are_refused(library, tmp_path):
    def saving():
        return library.lightning.callbacks.ModelCheckpoint(tmp_path / "dense", save_last=True)

    trainer(library, tmp_path, [saving()], max_epochs=2).fit(module(library), loader())
    dense = tmp_path / "dense" / "last.ckpt"
    with pytest.raises(gator.FileError, match="saved without gates"):
        trainer(library, tmp_path, [callback(library)]).fit(module(library), loader(), ckpt_path=dense)
    pruned = library.lightning.callbacks.ModelCheckpoint(tmp_path / "pruned", save_last=True)
    trainer(library, tmp_path, [callback(library), pruned], max_epochs=3).fit(module(library), loader())
    other = module(library)
    trainer(library, tmp_path, [callback(library, target=0.4)]).fit(other, loader())
    with pytest.raises(gator.FileError, match="of another plan"):
        trainer(library, tmp_path, [callback(library)]).fit(other, loader(), ckpt_path=tmp_path / "pruned" / "last.ckpt")


def test_shrinking_is_refused_where_it_is_not_safe(library, tmp_path):
    model = module(library)

    class Two(type(model)):
        def configure_optimizers(self):
            return [torch.optim.SGD(self.net.head.parameters(), lr=0.1), torch.optim.SGD(self.net.blocks.parameters(), lr=0.1)]

        automatic_optimization = False

    model.__class__ = Two
    with pytest.raises(gator.GatorError, match="one process and one optimizer"):
        trainer(library, tmp_path, [callback(library, shrink=True)]).fit(model, loader())


def TwiceOf(library):
    class Second(library.PruneCallback):
        """Lightning itself refuses two callbacks with one state key."""

    return Second(network="net", example_inputs=torch.randn(2, 1, 8, 8), target=0.5)


def test_a_network_in_the_module_itself(library, tmp_path):
    class Plain(library.lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.example_input_array = nn.Conv2d(1, 16, 3), nn.Linear(16, 10), torch.randn(2, 1, 8, 8)

        def forward(self, x):
            return self.b(functional.relu(self.a(x)).mean((2, 3)))

        def training_step(self, batch, _):
            return functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    model = Plain()
    trainer(library, tmp_path, [library.PruneCallback(0.5)]).fit(model, loader())
    assert model.a.out_channels == 8


def evaluated(library, seed=0):
    """A module that logs a test loss."""
    model = module(library, seed)

    def test_step(batch, batch_idx):
        model.log("loss", functional.cross_entropy(model.net(batch[0]), batch[1]))

    model.test_step = test_step
    return model


def test_a_checkpoint_is_tested_without_its_closed_channels(library, tmp_path):
    """Also one from before the end, when channels were closed and not yet removed."""
    model, prune = evaluated(library), callback(library, shrink=False)
    saving = library.lightning.callbacks.ModelCheckpoint(tmp_path / "all", save_top_k=-1)
    trainer(library, tmp_path, [prune, saving]).fit(model, loader())
    path = sorted((tmp_path / "all").iterdir())[-1]
    (after,) = trainer(library, tmp_path, []).test(model, loader(), verbose=False)
    again = trainer(library, tmp_path, [callback(library, shrink=False)])
    fresh = evaluated(library, 3)
    (found,) = again.test(fresh, loader(), ckpt_path=path, verbose=False)
    assert found["loss"] == pytest.approx(after["loss"], rel=1e-4)
    assert "forward" not in fresh.net.__dict__
    with pytest.raises(gator.FileError, match="Load it into a fresh instance"):
        trainer(library, tmp_path, [prune]).test(model, loader(), ckpt_path=path, verbose=False)


def test_a_second_fit_does_not_prune_again(library, tmp_path):
    model, prune = module(library), callback(library)
    trainer(library, tmp_path, [prune]).fit(model, loader())
    small = gator.plan(model.net)
    trainer(library, tmp_path, [prune], max_epochs=2).fit(model, loader())
    assert gator.plan(model.net) == small
    assert prune.pruner.steps_taken == 8


def test_an_exception_takes_the_gates_off(library, tmp_path):
    model = module(library)
    with pytest.raises(RuntimeError, match="killed"):
        trainer(library, tmp_path, [callback(library), stopping(library)]).fit(model, loader())
    assert "forward" not in model.net.__dict__
    trainer(library, tmp_path, [callback(library)]).fit(model, loader())


def test_manual_optimization(library, tmp_path):
    class Manual(type(module(library))):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, _):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    prune = callback(library)
    trainer(library, tmp_path, [prune]).fit(Manual(), loader())
    assert prune.pruner.finished
