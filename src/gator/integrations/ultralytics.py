"""Pruning inside the trainers of Ultralytics (YOLO), which is AGPL-3.0: an optional extra, of which nothing is copied here.

yolo = YOLO("yolov8n.yaml")
yolo.train(data="data.yaml", epochs=100, trainer=pruning_trainer(target=0.5))
YOLO("runs/detect/train/weights/best.pt").predict("image.jpg")     # an ordinary file: it loads without this package too
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gator.cost.by_name import CostName
from gator.cost.prices import Cost, PlainCost
from gator.errors import FileError, GatorError
from gator.extras import optional_import
from gator.gates.attach import take_gates_off
from gator.gates.pruner import Pruner
from gator.graph.replaced_forward import has_replaced_forward
from gator.surgery.apply import apply, plan
from gator.surgery.cut_plan import CutPlan
from gator.surgery.history import forget, steps_of

ultralytics: Any = optional_import("ultralytics", extra="ultralytics", purpose="gator.integrations.ultralytics")
detect: Any = optional_import("ultralytics.models.yolo.detect", extra="ultralytics", purpose="gator.integrations.ultralytics")
SAVED = "gator_saved"  # the attribute of a saved model: plain data, so that the file loads without this package
_EVENTS = ("on_pretrain_routine_start", "on_pretrain_routine_end", "on_train_batch_end", "on_train_epoch_end", "on_train_end")


class PruneCallback:
    """Prunes the network of an Ultralytics trainer while it trains: `PruneCallback(0.5).add_to(yolo)`, then `yolo.train(...)`.

    A term of the gates is added to the loss of every batch, they are updated after every batch, and at the end of an epoch the
    closed channels leave the network, the optimizer and the average of its weights that Ultralytics validates and saves. After
    the gated epochs the target is reached; the others train the smaller network. `best.pt` is the best of these. To be able to
    resume a run, use `pruning_trainer`.

    Args:
        target: what may be left of the cost, as in `gator.Pruner`.
        gated: the share of the epochs with gates.
        cost: as in `gator.Pruner`, counted for one image of the size that is trained with.
        settings: further arguments of `gator.Pruner`.
    """

    def __init__(
        self,
        target: float | str = 0.5,
        *,
        gated: float = 0.3,
        cost: CostName | Cost | PlainCost = "flops",
        **settings: Any,
    ) -> None:
        if not 0 < gated <= 1:
            raise GatorError(f"gated={gated!r}; expected a share of the epochs, more than 0 and at most 1")
        self.target, self.gated, self.cost = target, gated, cost
        self.settings = {"min_width": 1, **settings, "keep_class": True}  # a block without channels would change the class
        self.pruner: Pruner | None = None
        self.cost_left = 1.0  # as a share of the cost at the start
        self._model: nn.Module | None = None
        self._hook: Any = None
        self._loss: Tensor | None = None

    def add_to(self, runner: Any) -> None:
        """Register this callback with a `YOLO` object or a trainer."""
        for event in _EVENTS:
            runner.add_callback(event, getattr(self, event))

    def on_pretrain_routine_start(self, trainer: Any) -> None:
        """Refuse, before any work is done, what would not work."""
        if trainer.world_size > 1:
            raise GatorError("pruning with Ultralytics runs on one device; pass one, such as device=0")
        if trainer.args.compile:
            raise GatorError("gates cannot be put on a compiled model; pass compile=False")
        if trainer.args.time:
            raise GatorError("the length of this run is not known; set epochs=, not time=")
        if trainer.resume and not isinstance(trainer, _KeepsWidths):
            raise GatorError("a callback cannot resume a run; pass trainer=pruning_trainer(...) to train(), and no callback")

    def on_pretrain_routine_end(self, trainer: Any) -> None:
        """Put the gates on. The average of the weights was copied before and has none."""
        model = trainer.model
        if has_replaced_forward(model):
            raise GatorError("this network has gates on already: is there a second PruneCallback, or a Pruner of your own?")
        saved = model.__dict__.pop(SAVED, {}) if trainer.resume else {}
        self._model = model
        self.cost_left = saved.get("cost_left", 1.0)
        if trainer.resume and "pruner" not in saved:
            if not saved:
                raise FileError(f"{trainer.args.model} was saved without gates; resume it with the trainer that saved it")
            return  # its gates are off already
        epochs = max(1, round(self.gated * trainer.epochs))
        example = torch.zeros(1, trainer.data["channels"], trainer.args.imgsz, trainer.args.imgsz, device=trainer.device)
        self.pruner = Pruner(
            model, example, target=self.target, steps=epochs * len(trainer.train_loader), cost=self.cost,
            state=saved.get("pruner"), **self.settings,
        )  # fmt: skip
        self._epochs = epochs

        def with_gates(module: nn.Module, args: Any, output: Any) -> Any:
            return self._with_gates(args[0], output) if module is model else None  # a copy of the model has the hook too

        self._hook = model.register_forward_hook(with_gates)

    def _with_gates(self, given: Any, output: Any) -> Any:
        """Add the term of the gates to the loss of a batch, which Ultralytics has multiplied by the number of its images."""
        assert self.pruner is not None
        if not isinstance(given, dict) or not self._found().training:
            return None  # no batch with labels
        loss, items = output
        self._loss = loss if self.pruner.finished else loss + self.pruner.loss() * (len(given["img"]) / loss.numel())
        return self._loss, items

    def on_train_batch_end(self, trainer: Any) -> None:
        if self.pruner is None or self.pruner.finished:
            return
        if trainer.model is not self._model:
            raise GatorError("the trainer has replaced its model since the gates were put on, so they would learn nothing")
        self.pruner.step()

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Remove what is closed, before the average of the weights is validated and saved."""
        average = trainer.ema.ema
        take_gates_off(average)  # Ultralytics copies the model with its gates when it recovers from a non-finite loss
        if self.pruner is not None and bool(torch.isfinite(trainer.loss).all()):
            self._shrink(trainer)
        trainer.lr["gator/cost_left"] = self.cost_left  # a column of results.csv
        saved: dict[str, Any] = {"cost_left": self.cost_left}
        if steps_of(self._found()):
            saved["plan"] = plan(self._found()).to_json()
        if self.pruner is not None:
            saved["pruner"] = self.pruner.state_dict()
        setattr(average, SAVED, saved)
        forget(average)

    def _found(self) -> nn.Module:
        assert self._model is not None
        return self._model

    def _shrink(self, trainer: Any) -> None:
        assert self.pruner is not None
        if trainer.epoch + 1 >= self._epochs:
            self.pruner.project()
        for loss in (trainer.loss, self._loss):  # the trainer still holds them, and with them the old shapes
            if loss is not None:
                loss.detach_()
        self._loss = None
        self.pruner.shrink_(trainer.optimizer, trainer.ema.ema)
        trainer.ema._pairs = None  # tensors of the old shapes, which newer releases keep
        self.cost_left = self.pruner.cost_left / self.pruner.whole_cost
        # Networks that are larger than the target neither count as the best one nor stop the run.
        trainer.best_fitness, trainer.stopper.best_fitness, trainer.stopper.best_epoch = None, 0.0, trainer.epoch
        if self.pruner.finished:
            self._hook.remove()
            self.pruner.detach()
            self.pruner = None

    def on_train_end(self, trainer: Any) -> None:  # noqa: ARG002
        """A run that was stopped early leaves a network with what was closed by then."""
        if self.pruner is not None:
            self._hook.remove()
            self.pruner.detach()
            self.pruner = None


class _KeepsWidths:
    """The part of a trainer that builds a pruned network from its file at the widths that it has there.

    Ultralytics' own trainers build it from its YAML, at full width, and leave out the weights that do not fit.
    """

    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> Any:
        parent: Any = super()
        saved = {} if weights is None else weights.__dict__.get(SAVED, {})
        if "plan" not in saved:
            return parent.get_model(cfg=cfg, weights=weights, verbose=verbose)
        fresh = parent.get_model(cfg=cfg, weights=None, verbose=False)
        small = apply(CutPlan.from_json(saved["plan"]), fresh, verify=False)
        mine, theirs = small.state_dict(), weights.float().state_dict()
        wrong = [name for name in mine if name not in theirs or mine[name].shape != theirs[name].shape]
        if wrong:
            raise FileError(
                f"the weights of this pruned network do not fit: {wrong[0]!r}\n"
                "  Train it with data of the same number of classes, or prune the original network on the new data."
            )
        small.load_state_dict(theirs)
        setattr(small, SAVED, saved)
        return small


def pruning_trainer(target: float | str = 0.5, *, base: Any = detect.DetectionTrainer, **settings: Any) -> Any:
    """A trainer class that prunes while it trains, for `YOLO(...).train(trainer=...)`; with `resume=True` it resumes a run.

    Args:
        target: what may be left of the cost.
        base: the trainer class of the task; that of detection, unless you pass another.
        settings: the other arguments of `PruneCallback`.
    """
    PruneCallback(target, **settings)  # wrong arguments raise now

    class PruningTrainer(_KeepsWidths, base):  # type: ignore[misc]
        """Trains and prunes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.prune = PruneCallback(target, **settings)
            super().__init__(*args, **kwargs)
            self.prune.on_pretrain_routine_start(self)
            self.prune.add_to(self)

    return PruningTrainer


def finetuning_trainer(*, base: Any = detect.DetectionTrainer) -> Any:
    """A trainer class that trains a pruned network further, as it is: Ultralytics' own would build it at full width again."""

    class FinetuningTrainer(_KeepsWidths, base):  # type: ignore[misc]
        """Trains a pruned network."""

        def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> Any:
            if weights is None or SAVED not in weights.__dict__:
                raise GatorError("this is no pruned network; train it with the trainer of Ultralytics, or pruning_trainer()")
            model = super().get_model(cfg=cfg, weights=weights, verbose=verbose)
            forget(model)  # what is saved of it is plain data
            return model

    return FinetuningTrainer
