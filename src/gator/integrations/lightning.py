"""Pruning inside the `Trainer` of Lightning 2: a callback.

prune = PruneCallback(network="net", example_inputs=x, target=0.5)
trainer = Trainer(max_epochs=20, callbacks=[prune])
trainer.fit(module, loader)     # with ckpt_path= a run is resumed, gates included
gator.save(module.net, "small.safetensors")
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from gator.cost.by_name import CostName
from gator.cost.prices import Cost, PlainCost
from gator.errors import FileError, GatorError
from gator.extras import optional_import
from gator.gates.pruner import Pruner
from gator.graph.replaced_forward import has_replaced_forward
from gator.integrations.resuming import cut_as_saved_, plan_of, should_shrink, without_closed_channels

lightning: Any = optional_import("lightning.pytorch", extra="lightning", purpose="gator.integrations.lightning")


class PruneCallback(lightning.Callback):  # type: ignore[misc]
    """Prunes a network inside a `LightningModule` while it trains; at the end of `fit` the network itself is smaller.

    A term of the gates is added to the loss before backward, they are updated after every step of the optimizer, and their
    state goes into the trainer's checkpoints, together with the plan of what was cut: `ckpt_path=` resumes a run with a fresh
    module. The progress bar and the loggers show `cost_left`, as a share of the cost at the start. With manual optimization
    call `self.manual_backward(loss)`, which adds the term; nothing else is needed. A second `fit` trains the smaller network
    on; it is not pruned again. `test`, `validate` and `predict` with `ckpt_path=` evaluate the network of that checkpoint,
    without the channels that were closed by then.

    Args:
        network: the attribute of the LightningModule that holds the network ("net"); "" for the module itself.
        example_inputs: as in `gator.Pruner`; by default the module's `example_input_array`.
        target: what may be left of the cost.
        gated: the share of the training steps with gates; the rest trains the network as it will be cut.
        cost: as in `gator.Pruner`.
        shrink: whether closed channels leave the network and its optimizer between epochs, so that the next ones are cheaper.
            By default they do if there is one process and one optimizer; else the network becomes smaller at the end.
        settings: further arguments of `gator.Pruner`. `keep_class` is True and `min_width` is 1 unless they are given.
    """

    def __init__(
        self,
        target: float | str = 0.5,
        *,
        network: str = "",
        example_inputs: Any = None,
        gated: float = 0.3,
        cost: CostName | Cost | PlainCost = "flops",
        shrink: bool | None = None,
        **settings: Any,
    ) -> None:
        if not 0 < gated <= 1:
            raise GatorError(f"gated={gated!r}; expected a share of the training steps, more than 0 and at most 1")
        self.target, self.network, self.example_inputs = target, network, example_inputs
        self.gated, self.cost, self.shrink = gated, cost, shrink
        self.settings = {"keep_class": True, "min_width": 1, **settings}
        self.pruner: Pruner | None = None
        self._saved: dict[str, Any] | None = None
        self._steps = 0  # of the optimizer, that the gates have followed
        self._cut: nn.Module | None = None  # the network that is as small as it was to become
        self._mask = ExitStack()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Cut the network as it was cut when a checkpoint was saved, before the weights of that checkpoint are loaded."""
        same = [each for each in trainer.callbacks if isinstance(each, PruneCallback) and each.network == self.network]
        if len(same) > 1:
            raise GatorError(f"there is a second PruneCallback for the network {self.network!r}; pass one")
        pl_module.__dict__.pop("on_load_checkpoint", None)
        original = pl_module.on_load_checkpoint

        def with_plan(checkpoint: dict[str, Any]) -> None:
            pl_module.__dict__.pop("on_load_checkpoint", None)
            saved = checkpoint.get("callbacks", {}).get(self.state_key)
            if not saved and stage == "fit":
                raise FileError(
                    "the checkpoint was saved without gates: there is no PruneCallback in it\n"
                    "  Resume with the callbacks that it was saved with; to prune a trained network, load its weights instead."
                )
            if saved:
                cut_as_saved_(pl_module.get_submodule(self.network), saved["plan"])
            self._saved = saved["pruner"] if saved else None
            original(checkpoint)

        pl_module.on_load_checkpoint = with_plan

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        pl_module.__dict__.pop("on_load_checkpoint", None)
        self._mask.close()
        self._saved = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Take the gates off, so that the network can be used."""
        if self.pruner is not None:
            self.pruner.detach()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._without_closed_channels(trainer, pl_module)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._without_closed_channels(trainer, pl_module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._without_closed_channels(trainer, pl_module)

    def _without_closed_channels(self, trainer: Any, pl_module: Any) -> None:
        """Outside `fit`, evaluate the network of a checkpoint without the channels that its gates had closed by then."""
        if self._saved is not None and trainer.state.fn != "fit":
            model = pl_module.get_submodule(self.network)
            keep_class = self.settings["keep_class"]
            closed = without_closed_channels(model, self._example(pl_module), self._saved, keep_class=keep_class)
            self._mask.enter_context(closed)

    def _example(self, pl_module: Any) -> Any:
        example = pl_module.example_input_array if self.example_inputs is None else self.example_inputs
        if example is None:
            raise GatorError("pass example_inputs to PruneCallback, or set example_input_array in the LightningModule")
        return example

    @property
    def _pruning(self) -> Pruner | None:
        """The pruner while it has something to do: not in a second `fit` of the same network."""
        return self.pruner if self._cut is None else None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        model: nn.Module = pl_module.get_submodule(self.network)
        if self._cut is model:
            return
        self._cut = None
        if has_replaced_forward(model):
            raise GatorError("this network has gates on already: is there a second PruneCallback, or a Pruner of your own?")
        total = trainer.estimated_stepping_batches
        if not isinstance(total, int):
            raise GatorError("the length of this run is not known; set max_epochs or max_steps in the Trainer")
        if self.shrink and not _can_shrink(trainer):
            raise GatorError("shrink=True needs one process and one optimizer; leave it out, and the network is cut at the end")
        steps = max(1, round(self.gated * total))
        self.pruner = Pruner(
            model, self._example(pl_module), target=self.target, steps=steps, cost=self.cost, state=self._saved, **self.settings
        )
        self._steps = trainer.global_step if self._saved is None else self.pruner.steps_taken

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Add the term of the gates to the loss, scaled as the loss is: for accumulated batches, and by a gradient scaler."""
        pruner = self._pruning
        if pruner is None:
            return
        if pl_module.get_submodule(self.network) is not pruner.model:
            raise GatorError(
                f"the network {self.network!r} was replaced since the gates were put on, so they would learn nothing\n"
                "  Build it before fit, in __init__ or configure_model."
            )
        scaler = (
            trainer.precision_plugin.scaler if isinstance(trainer.precision_plugin, lightning.plugins.MixedPrecision) else None
        )
        scale = 1.0 if scaler is None else scaler.get_scale()
        loss.add_(pruner.loss() * (scale / trainer.accumulate_grad_batches))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *given: Any) -> None:  # noqa: ARG002
        pruner = self._pruning
        if pruner is not None and trainer.global_step > self._steps:
            self._steps = trainer.global_step
            pruner.step()
            pl_module.log("cost_left", pruner.cost_left / pruner.whole_cost, prog_bar=True)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Shrink between epochs. A run that is resumed from the end of an epoch gets here too."""
        wanted = _can_shrink(trainer) if self.shrink is None else self.shrink
        pruner = self._pruning
        if pruner is not None and wanted and should_shrink(pruner):
            pruner.shrink_(trainer.optimizers[0])

    def state_dict(self) -> dict[str, Any]:
        return {} if self.pruner is None else {"pruner": self.pruner.state_dict(), "plan": plan_of(self.pruner.model)}

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Make the network smaller, also that of a run that was stopped early."""
        pruner = self._pruning
        if pruner is not None:
            pruner.project()
            pruner.shrink_()
            pruner.detach()
            self._cut = pruner.model


def _can_shrink(trainer: Any) -> bool:
    """Several processes have wrapped the network, and several optimizers would have to be cut together."""
    return trainer.world_size == 1 and len(trainer.optimizers) == 1
