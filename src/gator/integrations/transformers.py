"""Pruning inside the `Trainer` of Hugging Face transformers: a callback, and files of the pruned model.

trainer = Trainer(model, args, train_dataset=data, callbacks=[PruneCallback(target=0.6)])
trainer.train()
save_pruned(trainer.model, "smaller")
model = load_pruned("smaller", BertForSequenceClassification)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gator.atomic_file import write_atomically
from gator.cost.by_name import CostName
from gator.cost.prices import Cost, PlainCost
from gator.errors import FileError, GatorError
from gator.extras import optional_import
from gator.gates.pruner import Pruner
from gator.graph.replaced_forward import has_replaced_forward
from gator.integrations.resuming import cut_as_saved_, plan_of, should_shrink
from gator.surgery.apply import apply, plan
from gator.surgery.cut_plan import CutPlan

transformers: Any = optional_import("transformers", extra="hf", purpose="gator.integrations.transformers")
accelerate: Any = optional_import("accelerate.optimizer", extra="hf", purpose="gator.integrations.transformers")
STATE, PLAN = "gator.pt", "gator_plan.json"  # in a checkpoint of the trainer, and beside the weights of a pruned model
_LABELS = ("labels", "label", "label_ids")


class PruneCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Prunes the model of a `Trainer` while it trains; afterwards `trainer.model` is the smaller network.

    A term of the gates is added to the loss that the model returns, so the batches must have labels. Gates and the plan of what
    was cut are saved with the trainer's checkpoints, and `trainer.train(resume_from_checkpoint=True)` goes on with them, with a
    fresh model. Pass the callback to the constructor of the Trainer. With `load_best_model_at_end` the best model is the best
    at the target: evaluations before it is reached do not count.

    Args:
        target: what may be left of the cost, as in `gator.Pruner`.
        gated: the share of the training steps with gates; the rest trains the network as it will be cut.
        cost: as in `gator.Pruner`.
        example_inputs: a dict of keyword arguments; by default the first batch without its labels.
        shrink: whether closed channels leave the model and its optimizer between epochs, so that the next ones are cheaper. By
            default they do with one process, unless the Trainer is to load the best model at the end or makes its model itself;
            else the model becomes smaller at the end.
        settings: further arguments of `gator.Pruner`. `keep_class` is True and `min_width` is 1 unless they are given.
    """

    def __init__(
        self,
        target: float | str = 0.5,
        *,
        gated: float = 0.3,
        cost: CostName | Cost | PlainCost = "flops",
        example_inputs: Mapping[str, Any] | None = None,
        shrink: bool | None = None,
        **settings: Any,
    ) -> None:
        if not 0 < gated <= 1:
            raise GatorError(f"gated={gated!r}; expected a share of the training steps, more than 0 and at most 1")
        self.target, self.gated, self.cost = target, gated, cost
        self.settings = {"keep_class": True, "min_width": 1, **settings}
        self.example_inputs, self.shrink = example_inputs, shrink
        self.pruner: Pruner | None = None
        self._hook: Any = None
        self._evaluated = False  # whether a network at the target has been evaluated
        self._loads: nn.Module | None = None  # the model that is cut as a checkpoint was before its weights are loaded

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        folder, self._loads = Path(args.output_dir), given["model"]

        def cut_before(module: nn.Module, weights: dict[str, Any], prefix: str, *_: Any) -> None:
            if not prefix and self.pruner is None:
                _cut_for(module, weights, folder)

        if self._loads is not None:
            self._loads.register_load_state_dict_pre_hook(cut_before)

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        model, loader = given["model"], given["train_dataloader"]
        if has_replaced_forward(model):
            raise GatorError(
                "this model has gates on already: is there a second PruneCallback, or a Pruner of your own?\n"
                "  After a training that was interrupted, call detach() of the callback's pruner first."
            )
        example = self.example_inputs or _first_batch(model, loader)
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        saved = _saved(folder) if state.global_step else None
        if saved is not None:
            cut_as_saved_(model, saved["plan"])
        can_shrink = args.world_size == 1 and args.n_gpu <= 1 and not args.load_best_model_at_end and model is self._loads
        if self.shrink and not can_shrink:
            raise GatorError(
                "shrink=True needs one process, a model that was passed to the Trainer together with this callback, and "
                "load_best_model_at_end=False\n  Leave it out, and the model is cut at the end."
            )
        self._shrinks = can_shrink if self.shrink is None else self.shrink
        steps = max(1, round(self.gated * state.max_steps))
        state_of_gates = None if saved is None else saved["pruner"]
        self._evaluated = saved is not None and saved["evaluated"]
        self.pruner = Pruner(
            model, example, target=self.target, steps=steps, cost=self.cost, state=state_of_gates, **self.settings
        )
        self._hook = model.register_forward_hook(self._with_gates)

    def _with_gates(self, model: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG002
        """Add the term of the gates to the loss in the model's output."""
        if self.pruner is None or not model.training or self.pruner.finished:
            return None
        if isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
            output["loss"] = output["loss"] + self.pruner.loss()  # type: ignore[index]
            return output
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor) and output[0].ndim == 0:
            return (output[0] + self.pruner.loss(), *output[1:])
        raise GatorError(
            "the model returns no loss that the gates could learn from\n"
            "  Pass labels with every batch, so that the model computes the loss itself; label_smoothing_factor and "
            "compute_loss_func compute it outside."
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        assert self.pruner is not None
        if given["model"] is not self.pruner.model:
            raise GatorError("the Trainer has replaced its model since the gates were put on, so they would learn nothing")
        self.pruner.step()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        if self.pruner is not None:
            for entry in (given["logs"], *state.log_history[-1:]):  # what other callbacks see, and what the trainer keeps
                entry["cost_left"] = self.pruner.cost_left / self.pruner.whole_cost

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Shrink between epochs. A run that is resumed from the end of an epoch gets here too."""
        assert self.pruner is not None
        between_epochs = float(state.epoch or 0).is_integer()  # not so when a run is resumed in the middle of an epoch
        if self._shrinks and between_epochs and should_shrink(self.pruner):
            optimizer = given["optimizer"]
            self._hook.remove()  # the cut is checked with inputs that have no labels
            self.pruner.shrink_(optimizer.optimizer if isinstance(optimizer, accelerate.AcceleratedOptimizer) else optimizer)
            self._hook = self.pruner.model.register_forward_hook(self._with_gates)

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Networks above the target do not count as the best: `load_best_model_at_end` would load weights of other channels."""
        if self.pruner is not None and not self._evaluated:
            state.best_metric = state.best_model_checkpoint = state.best_global_step = None
            self._evaluated = self.pruner.finished

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        if self.pruner is not None and state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            saved = {
                "pruner": self.pruner.state_dict(),
                "plan": plan_of(self.pruner.model),
                "evaluated": self._evaluated,
                "shapes": {name: list(tensor.shape) for name, tensor in self.pruner.model.state_dict().items()},
            }
            write_atomically(path, lambda temporary: torch.save(saved, temporary))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Make the model itself smaller. A run that was stopped early gives what its gates say by then."""
        assert self.pruner is not None
        self._hook.remove()
        self.pruner.project()
        self.pruner.shrink_()
        self.pruner.detach()


def _cut_for(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Cut a fresh model for the weights of a checkpoint, which the Trainer loads before it tells callbacks which one it is."""
    here = model.state_dict()
    if all(here[name].shape == tensor.shape for name, tensor in weights.items() if name in here):
        return
    for path in sorted(folder.glob(f"checkpoint-*/{STATE}")):
        saved = _saved(path.parent)
        if all(saved["shapes"].get(name) == list(tensor.shape) for name, tensor in weights.items()):
            cut_as_saved_(model, saved["plan"])
            return


def _first_batch(model: nn.Module, loader: Any) -> dict[str, Any]:
    """The arguments of the model in the first batch, without labels. The random state stays as it was."""
    random = torch.get_rng_state()
    batch = next(iter(loader))
    torch.set_rng_state(random)
    names = inspect.signature(model.forward).parameters
    return {name: value for name, value in batch.items() if name in names and name not in _LABELS}


def _saved(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    if not path.is_file():
        raise FileError(
            f"the checkpoint {folder} was saved without gates: there is no {STATE} in it\n"
            "  Resume with the callbacks that it was saved with, or start again."
        )
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    return saved


def save_pruned(model: nn.Module, folder: str | Path) -> None:
    """Save a pruned model as `save_pretrained` does, with the plan of the cut beside it."""
    target: Any = model
    target.save_pretrained(folder)
    Path(folder, PLAN).write_text(plan(model).to_json())


def load_pruned(folder: str | Path, model_class: type[nn.Module]) -> nn.Module:
    """The model that `save_pruned` saved: an instance of `model_class` (`BertForSequenceClassification`), made smaller."""
    from safetensors.torch import load_file

    path = Path(folder, PLAN)
    if not path.is_file():
        raise FileError(f"{folder} has no {PLAN}; expected a folder that save_pruned wrote")
    config = transformers.AutoConfig.from_pretrained(folder)
    model = apply(CutPlan.from_json(path.read_text()), model_class(config), verify=False)
    weights = load_file(Path(folder, "model.safetensors"))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = {name for name in missing if any(name.endswith(key) for key in _tied(model))}
    if unexpected or set(missing) - tied:
        raise FileError(f"the weights in {folder} do not fit its plan: {[*unexpected, *missing][0]!r}")
    return model.eval()


def _tied(model: nn.Module) -> tuple[str, ...]:
    """Names of weights that are saved under another name, because they are the same tensors."""
    found: Any = model
    return tuple(found.all_tied_weights_keys)
