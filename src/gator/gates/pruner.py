"""`Pruner`: gates on a network inside the user's own training loop, and the smaller network that comes out of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from gator.cost.budget import parse_target
from gator.cost.by_name import CostName, cost_of
from gator.cost.prices import Cost, PlainCost, Prices
from gator.errors import GatorError
from gator.gates.attach import GatedForward, attach, detach, gates_off
from gator.gates.controller import Controller
from gator.gates.correct import meeting
from gator.gates.follow import origin_of, traced_again
from gator.gates.gate import Gates
from gator.gates.loss import ComputationalLoss
from gator.gates.project import Limits, Scores, blamed_edge, project, smallest, unreachable
from gator.gates.settings import check_settings
from gator.gates.view import live_view, summary_table
from gator.graph.hypergraph import Hypergraph, SavedGraph
from gator.graph.trace import retraced, trace
from gator.surgery.cut import cut
from gator.surgery.inplace import cut_

FORMAT = 1
_NEAR = 1.1  # times the target
_FAR = 0.5  # of the target: no estimate is so far off that what is said to cost less cannot be reached


class Pruner:
    """Learns which channels of `model` can go.

    Add `pruner.loss()` to the loss, and call `pruner.step(lr=...)` after the optimizer's step. `alpha` weighs the cost against
    the original loss (eq. 4), or `target` with `steps` says what may be left of the cost after so many steps: a share, or a
    figure such as "300 MMACs" (counted for the example inputs: pass one example) or "4 MB". `per="example"` draws gates for
    every example (the paper), `per="batch"` once a forward. `round_to` is a number of channels that widths are multiples of, or
    "auto" for the steps that a latency table shows. `state` is what `state_dict()` gave for the network as it is: the pruner
    goes on from there.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Any = None,
        *,
        cost: CostName | Cost | PlainCost = "flops",
        alpha: float | None = None,
        target: float | str | None = None,
        steps: int | None = None,
        per: str = "example",
        gamma: float = 0.2,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        temperature: float = 1.0,
        min_width: int | Mapping[str, int] = 0,
        round_to: int | str = 1,
        keep: Sequence[str] = (),
        graph: SavedGraph | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        check_settings(alpha, target, steps, per, gamma, momentum, weight_decay, temperature)
        if (graph is None) == (example_inputs is None):
            raise GatorError("pass example_inputs, or graph=gator.trace(...): one of them, not both")
        self.model = model
        self.cost: Cost = cost_of(cost)
        self.unit: str = self.cost.unit
        self.per, self.gamma, self.momentum, self.weight_decay = per, gamma, momentum, weight_decay
        self._temperature, self._keep = temperature, tuple(keep)
        self.graph = trace(model, example_inputs) if graph is None else retraced(graph, model)
        if not self.graph.edges:
            raise GatorError("this network has no channels that could be removed; graph.explain(layer) says why")
        self._limits = Limits.of(self.graph, min_width, round_to, keep)
        self._check_unit(state or {})
        self.prices: Prices = self._priced(state)
        self._limits = self._limits.in_steps_of(self.prices)
        self.whole_cost = self.prices.total([edge.width for edge in self.graph.edges])
        self.target = None if target is None else parse_target(target, self.whole_cost, self.unit)
        self.alpha = 0.0 if alpha is None else float(alpha)
        self.finished = False  # True once a target is met: nothing is closed or drawn any more
        self._looked = False  # whether an estimated cost was measured close to the target
        self.steps_taken = self.steps_skipped = 0
        self._forward = self._gated_forward()
        self._loss = ComputationalLoss(self.prices, self.gates, self._gated)
        self._scale = self._new_scale()
        self._view: Any = None
        self._controller: Controller | None = None
        if self.target is not None:
            assert steps is not None
            self._controller = Controller(steps, momentum, float(self.gates.logits[0].detach()))
            if state is None:
                self._deciding_logit()  # raises now if the target cannot be reached
                self._check_smallest()
                if self.whole_cost <= self.target:
                    self.project()  # there is nothing to do
        if state is not None:
            self.load_state_dict(state)
        attach(self._forward)

    def _priced(self, state: Mapping[str, Any] | None) -> Prices:
        if state is None:
            return self.cost.on(self.model, self.graph)
        return self.cost.restored(self.model, self.graph, state["pricing_state"])

    @property
    def gates(self) -> Gates:
        return self._forward.gates

    @property
    def _gated(self) -> frozenset[int]:
        return frozenset(i for i, edge in enumerate(self.graph.edges) if edge.name not in self._keep)

    def _gated_forward(self) -> GatedForward:
        return GatedForward(self.model, self.graph, self.per, self._gated, self._temperature)

    def _new_scale(self) -> Tensor:
        """A zero that is added to the loss: its gradient tells by what a loss scaler (or accumulation) multiplied it."""
        return torch.zeros((), device=self.gates.logits.device, dtype=self.gates.logits.dtype, requires_grad=True)

    # What the training loop calls.

    def loss(self) -> Tensor:
        """alpha times the computational loss (eq. 3), for the gates of the latest forward in train mode."""
        if self.finished:
            return self._scale.detach()
        drawn = self._forward.last
        if drawn is None:
            raise GatorError(
                "pruner.loss() needs a forward in train mode first: call model.train() and model(x), then pruner.loss()"
            )
        return self.alpha * self._loss(drawn) + self._scale

    def computational_loss(self) -> float:
        """What is open on average, as a share of the cost at the start; 1 when all gates are open for good."""
        return float(self._loss(self.gates.probabilities[None]))

    def step(self, *, lr: float) -> None:
        """Update the gates (eq. 8), close for good what passes less often than not, and steer towards the target."""
        if not lr >= 0:
            raise GatorError(f"lr={lr!r}; expected the learning rate of this step, zero or more")
        if self.finished:
            return
        gradient = self._gradient()
        self.steps_taken += 1
        if self._controller is not None:
            self._controller.step += 1
        if gradient is not None:
            self._update(gradient, self._rate(lr))
            self._close()
        if self._controller is not None and not self.finished:
            self._steer(lr)
        if self._view is not None:
            self._view.update()

    def _rate(self, lr: float) -> float:
        return self.gamma * lr if self._controller is None else self._controller.rate(lr, self.gamma)

    def _gradient(self) -> Tensor | None:
        """The mean gradient of the logits over micro-batches and processes; None if a scaler's overflow spoiled it."""
        logits, scale = self.gates.logits, self._scale
        if scale.grad is None:
            raise GatorError(
                "pruner.step() found no gradient of pruner.loss(): add it to the loss (loss = criterion(...) + pruner.loss()) "
                "and call loss.backward() before"
            )
        gradient = torch.zeros_like(logits) if logits.grad is None else logits.grad
        both = torch.cat([gradient.detach(), scale.grad.detach()[None]])
        logits.grad = scale.grad = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(both)
            dist.broadcast(both, 0)  # bit for bit the same everywhere, whatever order they were added in
        if not bool(torch.isfinite(both).all()) or float(both[-1]) == 0:
            self.steps_skipped += 1
            return None
        return both[:-1] / both[-1]

    def _update(self, gradient: Tensor, rate: float) -> None:
        gates, price = self.gates, self._loss.lambda_hat
        with torch.no_grad():
            if self.weight_decay:
                gradient = gradient + self.weight_decay * gates.logits
            # Divided by the edge's own price, every edge closes at the same pace (eq. 9). What costs nothing stays.
            pull = torch.where(price > 0, gradient / price, 0.0)
            gates.momentum.mul_(self.momentum).add_(pull).mul_(gates.alive & ~gates.held)
            gates.logits.sub_(rate * gates.momentum)

    def _close(self) -> None:
        """Close for good what passes less often than not, as far as the limits and the target allow."""
        gates, logits = self.gates, self._scores()
        alive = gates.living()
        if not (alive & (logits < 0) & ~gates.held.cpu().numpy()).any():
            return
        limits = self._limits
        after = self._open(alive, logits, limits)
        while (blamed := blamed_edge(self.graph, alive, after)) is not None:
            limits = limits.with_one_of(self.graph, self.graph.edges[blamed].name)
            after = self._open(alive, logits, limits)
        if self.target is not None and self._cost_near(after) <= self.target:
            self.project()
            return
        self._keep_only(after)
        gates.held = torch.from_numpy(after & (logits < 0)).to(gates.logits.device)

    def _cost_near(self, alive: NDArray[np.bool_]) -> float:
        """What these channels cost. An estimate is made right close to the target: what closes before, closes for good."""
        assert self.target is not None
        widths = self.gates.widths(alive)
        if self.prices.tolerance and not self._looked and self.prices.total(widths) <= _NEAR * self.target:
            self._looked = True
            now = self.gates.living()
            self._priced_as(now, self._measured(now))
        return self.prices.total(widths)

    def _priced_as(self, alive: NDArray[np.bool_], cost: float) -> None:
        """From here on by what these channels were measured to cost, where prices can learn from that."""
        if self.prices.tolerance:
            self.prices = self.prices.recalibrated(self.gates.widths(alive), cost)
            self._loss = ComputationalLoss(self.prices, self.gates, self._gated, whole=self._loss.whole)

    def _open(self, alive: NDArray[np.bool_], logits: Scores, limits: Limits) -> NDArray[np.bool_]:
        """The channels that stay: those that pass more often than not, and as many more as the limits ask for."""
        after: NDArray[np.bool_] = alive.copy()
        for index in self._gated:
            part = self.gates.of_edge(index)
            wanted = int((alive[part] & (logits[part] >= 0)).sum())
            fitting = [step for step in limits.widths_down(index, int(alive[part].sum())) if step >= wanted]
            if fitting:
                order = np.argsort(np.where(alive[part], logits[part], -np.inf), kind="stable")[::-1]
                after[part] = False
                after[part.start + order[: min(fitting)]] = True
        return after

    def _scores(self) -> Scores:
        return self.gates.logits.detach().cpu().double().numpy()

    def _keep_only(self, alive: NDArray[np.bool_]) -> None:
        if (alive == self.gates.living()).all():
            return
        self.gates.alive = torch.from_numpy(alive.copy()).to(self.gates.logits.device)
        self.gates.momentum *= self.gates.alive
        self._loss.refresh()
        self._forward.refresh()

    def _deciding_logit(self) -> float:
        """The logit of the last channel that has to close for the target to be met."""
        assert self.target is not None
        alive = self.gates.living()
        return project(self.graph, self.prices, self._limits, alive, self._scores(), self.target, unit=self.unit).score

    def _check_smallest(self) -> None:
        """Where costs are estimated, raise now if the smallest network there can be is measured to be above the target."""
        assert self.target is not None
        if self.prices.tolerance:
            alive = smallest(self.graph, self._limits, self.gates.living())
            widths = self.gates.widths(alive)
            if self.prices.total(widths) > _FAR * self.target:
                lowest = self._measured(alive)
                if lowest > self.target:
                    raise unreachable(self.target, lowest, self.unit)

    def _steer(self, lr: float) -> None:
        control = self._controller
        assert control is not None
        if control.due:
            self.project()
        elif control.step % control.every == 0 or control.step == 1:
            self.alpha = control.alpha(self._deciding_logit(), self._rate(lr))

    def project(self) -> None:
        """Close the lowest logits until the target is met exactly, and draw no more gates from here on."""
        if self.target is None:
            raise GatorError("project() needs a target; this pruner was given alpha=")
        if self.finished:
            return
        alive, cost = self._projected(self.target)
        self._keep_only(alive)
        if cost is not None:
            self._priced_as(alive, cost)
        self.gates.held = torch.zeros_like(self.gates.held)
        self.finished, self._forward.noisy, self.alpha = True, False, 0.0

    def _projected(self, target: float) -> tuple[NDArray[np.bool_], float | None]:
        """The living channels that meet the target and, where costs are estimated, what they were measured to cost."""
        scores, living = self._scores(), self.gates.living()
        return meeting(
            self.graph,
            self.prices,
            lambda wanted: project(self.graph, self.prices, self._limits, living, scores, wanted, unit=self.unit).alive,
            self._measurable,
            target,
            unit=self.unit,
        )

    def _measured(self, alive: NDArray[np.bool_]) -> float:
        """What the network with these channels really costs."""
        widths = self.gates.widths(alive)
        found = self.prices.measure(self._measurable(self.graph.masks_of(alive)), widths)
        return self.prices.total(widths) if found is None else found

    def _measurable(self, kept: Mapping[str, Any]) -> nn.Module:
        """The smaller network in the form that networks are measured in."""
        return self._cut(kept, keep_class=False, verify=False)

    # What comes out.

    @property
    def kept(self) -> dict[str, list[int]]:
        """The living channels of the edges that have lost some, as `gator.cut` and `gator.masked` take them."""
        return {name: np.flatnonzero(mask).tolist() for name, mask in self._forward.kept().items()}

    @property
    def cost_left(self) -> float:
        """What the network costs with the channels that live now, in the unit of the cost."""
        return self.prices.total(self.gates.widths())

    def cut(self, *, keep_class: bool | None = None) -> nn.Module:
        """The smaller network; the one in training stays as it is, gates included.

        Before a target is met, the network is what meeting it now would leave.
        """
        if self.target is None or self.finished:
            return self._cut(self.kept, keep_class=keep_class)
        return self._cut(self.graph.masks_of(self._projected(self.target)[0]), keep_class=keep_class)

    def _cut(self, kept: Mapping[str, Any], *, keep_class: bool | None, verify: bool = True) -> nn.Module:
        with gates_off(self._forward):
            return cut(self.model, self.graph, kept, keep_class=keep_class, verify=verify)

    def shrink_(self, optimizer: Optimizer | None = None) -> None:
        """Take what is closed out of the network, the gates and the optimizer's state, and go on training."""
        if not self._forward.kept():
            return
        old_graph, old_forward = self.graph, self._forward
        old_forward.last = None  # of a compiled network, the latest draw holds the shapes of all parameters
        was_on = detach(old_forward)
        try:
            cut_(self.model, old_graph, self.kept, optimizer=optimizer)
        except BaseException:
            if was_on:
                attach(old_forward)
            raise
        self._take_over(old_graph, old_forward)
        if was_on:
            attach(self._forward)

    def _take_over(self, old_graph: Hypergraph, forward: GatedForward) -> None:
        """Gates for the network as it is now, with what the old ones had learned."""
        self.graph, old = traced_again(self.model, old_graph), forward.gates
        origin = origin_of(old_graph, self.graph, old)
        edges = old.edge_of[origin.first[self.graph.starts[:-1]]]  # the old edge of every new one
        least = [min(int(self._limits.least[i]), edge.width) for i, edge in zip(edges, self.graph.edges, strict=True)]
        self._limits = Limits(np.array(least, dtype=np.int64), self._limits.round_to)
        kept = {i for i, edge in enumerate(old_graph.edges) if edge.name in self._keep}
        self._keep = tuple(edge.name for i, edge in zip(edges, self.graph.edges, strict=True) if int(i) in kept)
        self._forward = self._gated_forward()
        self._forward.noisy = forward.noisy
        with torch.no_grad():
            self.gates.logits.copy_(origin.carried(old.logits.detach()))
            self.gates.momentum.copy_(origin.carried(old.momentum))
            self.gates.held = origin.carried(old.held.to(old.logits.dtype)) == 1
        with gates_off(self._forward):
            self.prices = self.cost.restored(self.model, self.graph, self.prices.state_for_cut(self.model, self.graph))
        self._loss = ComputationalLoss(self.prices, self.gates, self._gated, whole=self._loss.whole)

    def detach(self) -> None:
        """Take the gates off: the model computes as it did before, with all its channels."""
        detach(self._forward)

    # Progress and checkpoints.

    def summary(self) -> str:
        """A table: living channels, mean probability to pass and share of the cost of every edge."""
        return summary_table(self)

    def live(self) -> AbstractContextManager[None]:
        """A table on the terminal that follows the run: `with pruner.live(): ...`."""
        return live_view(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on: gates, closed channels, momentum, and where the controller is."""
        return {
            "format": FORMAT,
            "unit": self.unit,
            "edges": {edge.name: edge.width for edge in self.graph.edges},
            "logits": self.gates.logits.detach().clone(),
            "alive": self.gates.alive.clone(),
            "held": self.gates.held.clone(),
            "momentum": self.gates.momentum.clone(),
            "least": self._limits.least.tolist(),
            "keep": list(self._keep),
            "whole": self._loss.whole,
            "pricing_state": self.prices.state(),
            "whole_cost": self.whole_cost,
            "target": self.target,
            "alpha": self.alpha,
            "finished": self.finished,
            "steps_taken": self.steps_taken,
            "steps_skipped": self.steps_skipped,
        }

    def _check_unit(self, state: Mapping[str, Any]) -> None:
        """Figures of a state must be figures of what is counted here."""
        unit = state.get("unit", self.unit)
        if unit != self.unit:
            raise GatorError(f"the state was saved with a cost in {unit}, this one is in {self.unit}; pass the same cost=")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same network, cut as it was then. On an error nothing has changed."""
        missing = [key for key in self.state_dict() if key not in state]
        if missing:
            raise GatorError(f"this is not the state of a pruner: it has no {missing[0]!r}")
        if state["format"] > FORMAT:
            raise GatorError(f"the state has format {state['format']}, this version reads up to {FORMAT}; upgrade gator")
        self._check_unit(state)
        here = [(edge.name, edge.width) for edge in self.graph.edges]
        for then, now in itertools.zip_longest(state["edges"].items(), here):
            if then != now:
                had, has = (f"edge {pair[0]!r} of width {pair[1]}" if pair else "no edge" for pair in (then, now))
                raise GatorError(
                    f"the state is of another network: it had {had} where there is {has} here\n"
                    "  Load the network as it was saved (gator.load after shrink_), make the pruner, then load its state."
                )
        if sorted(state["keep"]) != sorted(self._keep):
            raise GatorError(f"the state was saved with keep={state['keep']}; make the pruner with the same, not {self._keep}")
        if (self.target is None) != (state["target"] is None):
            raise GatorError("the state was saved with target= and this pruner has alpha=, or the other way round")
        prices = self.prices
        if state["pricing_state"] != prices.state():
            with gates_off(self._forward):
                prices = self.cost.restored(self.model, self.graph, state["pricing_state"])
        device = self.gates.logits.device
        with torch.no_grad():
            self.gates.logits.copy_(state["logits"])
            self.gates.momentum.copy_(state["momentum"])
        self.gates.alive = state["alive"].to(device).clone()
        self.gates.held = state["held"].to(device).clone()
        self._limits = Limits(np.array(state["least"], dtype=np.int64), self._limits.round_to)
        if prices is not self.prices:
            self.prices, self._loss = prices, ComputationalLoss(prices, self.gates, self._gated, whole=state["whole"])
        self._loss.whole, self.whole_cost = state["whole"], state["whole_cost"]
        self.target, self.alpha, self.finished = state["target"], state["alpha"], state["finished"]
        self.steps_taken, self.steps_skipped = state["steps_taken"], state["steps_skipped"]
        if self._controller is not None:
            self._controller.step = self.steps_taken
        self._forward.noisy = not self.finished
        self._loss.refresh()
        self._forward.refresh()
