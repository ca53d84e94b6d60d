"""Pruning inside the `Trainer` of Lightning 2: a callback.

prune = PruneCallback(network="net", example_inputs=x, target=0.5)
trainer = Trainer(max_epochs=20, callbacks=[prune])
trainer.fit(module, loader)     # with ckpt_path= a run is resumed, gates included
gator.save(module.net, "small.safetensors")
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gator.cost.by_name import CostName
from gator.cost.prices import Cost, PlainCost
from gator.errors import GatorError
from gator.extras import optional_import
from gator.gates.pruner import Pruner
from gator.graph.replaced_forward import has_replaced_forward

lightning: Any = optional_import("lightning.pytorch", extra="lightning", purpose="gator.integrations.lightning")


class PruneCallback(lightning.Callback):  # type: ignore[misc]
    """Prunes a network inside a `LightningModule` while it trains; at the end of `fit` the network itself is smaller.

    The cost is added to the loss before backward, gates are updated after every step of the optimizer, and their state goes
    into the trainer's checkpoints. With manual optimization call `prune.pruner.loss()` and `.step()` yourself.

    Args:
        network: the attribute of the LightningModule that holds the network ("net"); "" for the module itself.
        example_inputs: as in `gator.Pruner`; by default the module's `example_input_array`.
        target: what may be left of the cost.
        gated: the share of the training steps with gates; the rest trains the network as it will be cut.
        cost: as in `gator.Pruner`.
        settings: further arguments of `gator.Pruner`.
    """

    def __init__(
        self,
        target: float | str = 0.5,
        *,
        network: str = "",
        example_inputs: Any = None,
        gated: float = 0.6,
        cost: CostName | Cost | PlainCost = "flops",
        **settings: Any,
    ) -> None:
        if not 0 < gated <= 1:
            raise GatorError(f"gated={gated!r}; expected a share of the training steps, more than 0 and at most 1")
        self.target, self.network, self.example_inputs = target, network, example_inputs
        self.gated, self.cost, self.settings = gated, cost, settings
        self.pruner: Pruner | None = None
        self._saved: dict[str, Any] | None = None
        self._steps = 0  # of the optimizer, that the gates have followed

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        model: nn.Module = pl_module.get_submodule(self.network)
        if has_replaced_forward(model):
            raise GatorError("this network has gates on already: is there a second PruneCallback, or a Pruner of your own?")
        example = pl_module.example_input_array if self.example_inputs is None else self.example_inputs
        if example is None:
            raise GatorError("pass example_inputs to PruneCallback, or set example_input_array in the LightningModule")
        total = trainer.estimated_stepping_batches
        if not isinstance(total, int):
            raise GatorError("the length of this run is not known; set max_epochs or max_steps in the Trainer")
        steps = max(1, round(self.gated * total))
        self.pruner = Pruner(
            model, example, target=self.target, steps=steps, cost=self.cost, state=self._saved, **self.settings
        )
        self._steps = trainer.global_step if self._saved is None else self.pruner.steps_taken

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:  # noqa: ARG002
        """Add the cost to the loss, scaled as the loss is: for accumulated batches, and by a gradient scaler."""
        assert self.pruner is not None
        scaler = (
            trainer.precision_plugin.scaler if isinstance(trainer.precision_plugin, lightning.plugins.MixedPrecision) else None
        )
        scale = 1.0 if scaler is None else scaler.get_scale()
        loss.add_(self.pruner.loss() * (scale / trainer.accumulate_grad_batches))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *given: Any) -> None:  # noqa: ARG002
        assert self.pruner is not None
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self.pruner.step(lr=trainer.optimizers[0].param_groups[0]["lr"])
            pl_module.log("cost_left", self.pruner.cost_left / self.pruner.whole_cost, prog_bar=True)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.pruner is None else {"pruner": self.pruner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict.get("pruner")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Make the network smaller, also that of a run that was stopped early."""
        assert self.pruner is not None
        self.pruner.project()
        self.pruner.shrink_()
        self.pruner.detach()
