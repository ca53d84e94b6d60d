"""`Pruner`: gates on a network inside the user's own training loop, and the smaller network that comes out of it.

It holds the gates and their update, and puts them on and takes them off. What the network may cost is the `Budget`'s business.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from gator.cost.by_name import CostName, cost_of
from gator.cost.prices import Cost, PlainCost, Prices, prices_of, restored_prices
from gator.cost.target import parse_target
from gator.errors import GatorError
from gator.gates.attach import GatedForward, attach, detach, gates_off, is_attached
from gator.gates.averages import averaged_network
from gator.gates.budget import Budget
from gator.gates.budget_schedule import Schedule
from gator.gates.channel_origin import origin_of, traced_again
from gator.gates.drawn_gates import DrawnGates
from gator.gates.gate import Gates
from gator.gates.limits import Limits, MinWidth, RoundTo
from gator.gates.loss import ComputationalLoss
from gator.gates.mean_gradient import loss_scale, mean_gradient_, scale_term
from gator.gates.open_gates import OpenGates
from gator.gates.project import Scores
from gator.gates.pruner_state import check_saved, load_state_, state_of
from gator.gates.settings import GateSettings, Per, check_goal, check_model
from gator.gates.sharded import check_unsharded, is_sharded
from gator.gates.summary import live_view, summary_table
from gator.graph.hypergraph import Hypergraph, SavedGraph
from gator.graph.program import Call
from gator.graph.trace import named_tensors, retraced, trace
from gator.surgery.cut import cut, cut_for_measurement
from gator.surgery.history import steps_of
from gator.surgery.inplace import cut_
from gator.surgery.keep_class import kept_in_class
from gator.surgery.widths_left import Cuts, widths_left


class Pruner:
    """Learns which channels of `model` can be removed.

    Add `pruner.loss()` to the loss, and call `pruner.step()` after the optimizer's step (with an alpha `pruner.step(lr=...)`).

    Args:
        model: the network; while the pruner is attached, it is read through gates in train mode. With an alpha they are drawn
            at random, with a target they are open until they are closed for good.
        example_inputs: a tensor, a tuple of positional or a dict of keyword arguments. Absolute targets such as "300 MMACs"
            count one forward pass of these.
        cost: "flops", "memory", "latency", or a cost object.
        alpha: the weight of the cost in the loss (eq. 4); or
        target: what may be left of the cost after `steps` steps: a share (0.5, "50%") or a figure ("300 MMACs", "4 MB").
        steps: the number of steps with gates. Channels close on a schedule; the target is reached after 0.75 of them (never
            above it, less than one step of `round_to` channels below it), and the rest trains the network as it will be cut.
        per: "example" has gates for every example (the paper), "batch" one set of gates per forward.
        gamma: with alpha, the learning rate of the gates, as a multiple of `lr` in `step` (eq. 7).
        momentum, weight_decay, temperature: with alpha, of the gates; the user's optimizer never sees them.
        min_width: the least width, of all edges or by name.
        round_to: widths are multiples of this. "auto": with a latency, of the block of channels that the kernels process at
            once, where that pays; else of 8 for edges of 64 channels or more, of 4 from 32 on and for grouped convolutions,
            so that no kernel becomes slower.
        keep: edges to leave as they are, by name, by a layer that writes them, by glob pattern or module.
        keep_class: True removes only what leaves the class of `model` working, as in `gator.trace`; every edge keeps a channel.
        graph: a traced graph to use instead of `example_inputs`.
        state: what `state_dict()` gave for this network as it is now: the pruner resumes from there, with the target, steps and
            limits that it was saved with.

    Raises:
        GatorError: for settings that do not fit; BudgetError if the target cannot be reached.

    Examples:
        >>> model, x, y = zoo.build("digits:resnet").model, torch.randn(8, 1, 8, 8), torch.arange(8)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> pruner = gator.Pruner(model, x, target=0.5, steps=3)
        >>> for _ in range(3):
        ...     loss = torch.nn.functional.cross_entropy(model(x), y) + pruner.loss()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     pruner.step()
        >>> small = pruner.cut()
        >>> gator.measure(small, x).macs <= 0.5 * pruner.whole_cost
        True
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
        per: Per = "example",
        gamma: float = 0.2,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        temperature: float = 1.0,
        min_width: MinWidth = 0,
        round_to: RoundTo = "auto",
        keep: Iterable[str | nn.Module] = (),
        keep_class: bool = False,
        graph: SavedGraph | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        check_goal(alpha, target, steps)
        self.settings = GateSettings(per, gamma, momentum, weight_decay, temperature)
        if target is not None:
            self.settings.check_for_target()
        check_model(model)
        if (graph is None) == (example_inputs is None):
            raise GatorError("pass example_inputs, or graph=gator.trace(...): one of them, not both")
        self.model = model
        self.cost: Cost = cost_of(cost)
        if state is not None:
            check_saved(state, self.cost.unit)
        self.graph: Hypergraph = trace(model, example_inputs) if graph is None else retraced(graph, model)
        if keep_class and not self.graph.keep_class:
            known = None if state is None else tuple(state["fixed"])  # what was found out before need not be tried again
            self.graph = kept_in_class(model, self.graph, known)
        if not self.graph.edges:
            raise GatorError("this network has no channels that could be removed; graph.explain(layer) says why")
        limits = Limits.of(model, self.graph, min_width, round_to, keep)
        if state is not None:
            limits = replace(limits, auto=False)  # what widths are multiples of is in the state
        prices = (
            prices_of(self.cost, model, self.graph)
            if state is None
            else restored_prices(self.cost, model, self.graph, state["budget"]["pricing_state"])
        )
        whole = prices.total([edge.width for edge in self.graph.edges])
        goal = None if target is None else parse_target(target, whole, self.unit)
        self.steps_taken = self.steps_skipped = 0
        self._alpha = 0.0 if alpha is None else float(alpha)
        self._view: Any = None
        self._forward = self._gated_forward(limits, drawn=target is None)
        self._scale = loss_scale(self.gates)
        budget = Budget(self.graph, prices, limits, self._measurable, whole=whole, target=goal, steps=steps)
        self._use(budget, loss_at_start=None if state is None else state["loss_at_start"])
        if state is not None:
            self.load_state_dict(state)
        elif goal is not None:
            self.budget.check_reachable(self.gates.living())
            self._forward.learning = whole > goal  # else there is nothing to do
        attach(self._forward)

    @property
    def gates(self) -> Gates:
        return self._forward.gates

    @property
    def prices(self) -> Prices:
        return self.budget.prices

    @property
    def whole_cost(self) -> float:
        """What the network cost at the start, in the unit of the cost."""
        return self.budget.whole

    @property
    def target(self) -> float | None:
        """In the unit of the cost."""
        return self.budget.target

    @property
    def unit(self) -> str:
        return self.cost.unit

    @property
    def finished(self) -> bool:
        """True once the target is reached: no channel is closed any more."""
        return not self._forward.learning

    @property
    def alpha(self) -> float:
        """The weight of the cost in the loss; 0 with a target, where the schedule says how much has to close."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        if self.target is not None:
            raise GatorError("alpha cannot be set: this pruner has a target, and a schedule instead of an alpha")
        check_goal(value, None, None)
        self._alpha = float(value)

    @property
    def unreachable(self) -> list[Call]:
        """Calls that read an edge and cannot be reached in the model's own forward: then a recording of the model runs."""
        return self._forward.unreachable

    @property
    def keep(self) -> tuple[str, ...]:
        """The edges that have no gates, by name."""
        return tuple(self.graph.edges[index].name for index in self.budget.limits.kept)

    def _gated_forward(self, limits: Limits, *, drawn: bool) -> GatedForward:
        gated = frozenset(range(len(self.graph.edges))) - frozenset(limits.kept)
        return GatedForward(self.model, self.graph, self.settings, gated, drawn=drawn)

    def _use(self, budget: Budget, loss_at_start: float | None = None) -> None:
        self.budget = budget
        self._loss = ComputationalLoss(budget, self.gates, self._forward.gated, loss_at_start)

    def loss(self) -> Tensor:
        """alpha times the computational loss (eq. 3), for the gates of the latest forward in train mode.

        With a target it is zero, but `step` needs it in the loss all the same: it tells how the loss was scaled.
        """
        self._check_attached("loss()")
        if self.finished:
            return self._scale.detach().sum()
        drawn = self._forward.last
        if drawn is None:
            raise GatorError(
                "pruner.loss() needs a forward in train mode first: call model.train() and model(x), then pruner.loss()"
            )
        cost = self.alpha * self._loss(drawn) if self.target is None else 0.0
        return cost + scale_term(self._scale)

    def computational_loss(self) -> float:
        """What is open on average, as a share of the cost at the start; 1 when all gates are open for good."""
        return float(self._loss(self.gates.probabilities[None]))

    def step(self, *, lr: float | None = None) -> None:
        """Update the gates and permanently close channels: those with a pass probability below 0.5; with a target, as
        many as the schedule says, those that are worth the least for their cost first.

        Args:
            lr: the learning rate of this step of the optimizer. Gates that are drawn (`alpha=`) learn with it.
        """
        if (lr is None and self.target is None) or (lr is not None and not lr >= 0):
            raise GatorError(f"lr={lr!r}; expected the learning rate of this step, zero or more")
        self._check_attached("step()")
        if self.finished:
            return
        if not self.steps_taken and self.target is not None and is_sharded(self.model):
            self.budget.check_needs_no_network()
        gradient = mean_gradient_(self.gates, self._scale)
        self._forward.forget_draw()
        self.steps_taken += 1
        if gradient is None:
            self.steps_skipped += 1
        else:
            self.gates.update_(gradient, self._loss.lambda_hat, lr or 0.0)
        if self.budget.schedule is not None:
            self._follow(self.budget.schedule)
        elif gradient is not None:
            self._close()
        if self._view is not None:
            self._view.update()

    def _forget_gradients(self) -> None:
        """Discard what the gates have collected since the last step, and the gates of the latest forward."""
        self.gates.taken_gradient(self._scale[0].detach(), self._scale[1].detach())
        self._scale.grad = None
        self._forward.last = None
        self._forward.forget_draw()

    def _check_attached(self, what: str) -> None:
        if not is_attached(self._forward):
            raise GatorError(f"pruner.{what} was called after detach(): the gates are off; make a new Pruner to go on pruning")

    def _follow(self, schedule: Schedule) -> None:
        """Close what costs more than the schedule allows, and everything above the target after its last step."""
        if self.steps_taken >= schedule.last_step:
            self.project()
        elif schedule.acts_at(self.steps_taken):
            self._keep_only(self.budget.on_schedule(self.gates.living(), self._worth(), self.steps_taken))

    def _close(self) -> None:
        """Permanently close channels with a pass probability below 0.5, as far as the budget allows."""
        gates = self.gates
        assert isinstance(gates, DrawnGates)
        alive, logits = gates.living(), gates.logits.detach().cpu().double().numpy()
        if not (alive & (logits < 0) & ~gates.held.cpu().numpy()).any():
            return
        after = self.budget.open_channels(alive, logits, sorted(self._forward.gated))
        self._keep_only(after)
        gates.held = torch.from_numpy(after & (logits < 0)).to(gates.device)

    def _worth(self) -> Scores:
        """With a target: what every channel is worth."""
        if not isinstance(self.gates, OpenGates):
            raise GatorError("there is no target to meet: this pruner was given alpha=")
        worth: Scores = self.gates.worth.cpu().double().numpy()
        return worth

    def _keep_only(self, alive: NDArray[np.bool_]) -> None:
        changed = bool((alive != self.gates.living()).any())
        if changed:
            self.gates.keep_only_(alive)
        self._loss.refresh()
        if changed:
            self._forward.refresh()

    def project(self) -> None:
        """Close the channels that are worth the least for their cost until the target is reached exactly."""
        if self.finished:
            return
        alive, measured = self.budget.projected(self.gates.living(), self._worth())
        self.budget.settle(alive, measured)
        self._keep_only(alive)
        self._forward.learning = False

    @property
    def kept(self) -> dict[str, list[int]]:
        """The living channels of the edges that have lost some, as `gator.cut` and `gator.masked` take them."""
        return {name: np.flatnonzero(mask).tolist() for name, mask in self._forward.kept().items()}

    @property
    def cost_left(self) -> float:
        """What the network costs with the channels that live now, in the unit of the cost.

        A measured cost is estimated until the target is reached; then this is what the final network was measured to cost.
        """
        reached = self.budget.reached
        return self.budget.cost(self.gates.living()) if reached is None else reached

    def living_widths(self) -> tuple[int, ...]:
        """The living channels of every edge of the network as it was before any cut, in the order of the graph it had then."""
        cuts: Cuts = [*((step.graph, step.kept) for step in steps_of(self.model)), (self.graph, self.kept)]
        return tuple(widths_left(cuts, named_tensors(self.model)).values())

    @property
    def saved_by_shrinking(self) -> float:
        """The share of the network's present cost that `shrink_` would remove."""
        return 1 - self.budget.cost(self.gates.living()) / self.prices.total([edge.width for edge in self.graph.edges])

    def cut(self, *, keep_class: bool | None = None) -> nn.Module:
        """The smaller network; the one in training stays as it is, gates included.

        Before the target is reached, this is the network that closing the least useful channels now would give; a warning says
        so.

        Args:
            keep_class: as in `gator.cut`.
        """
        if self.target is None or self.finished:
            return self._cut(self.kept, keep_class=keep_class)
        assert self.budget.schedule is not None
        warnings.warn(
            f"cut() after {self.steps_taken} of {self.budget.schedule.steps} steps: the target is not reached yet, so the "
            "channels to remove are chosen early, and the network has not been trained without them",
            stacklevel=2,
        )
        alive, _ = self.budget.projected(self.gates.living(), self._worth())
        return self._cut(self.graph.masks_of(alive), keep_class=keep_class)

    def _cut(self, kept: Mapping[str, Any], *, keep_class: bool | None) -> nn.Module:
        check_unsharded(self.model, "cut()")
        with gates_off(self._forward):
            return cut(self.model, self.graph, kept, keep_class=keep_class)

    def _measurable(self, kept: Mapping[str, Any]) -> nn.Module:
        """The smaller network in the form that networks are measured in."""
        check_unsharded(self.model, "building the smaller network")
        with gates_off(self._forward):
            return cut_for_measurement(self.model, self.graph, kept)

    def cut_so_far(self) -> nn.Module:
        """The network with the channels that live now, as a graph and unchecked: to evaluate it in the middle of training."""
        return self._measurable(self.kept)

    def shrink_(self, optimizer: Optimizer | None = None, *averages: nn.Module) -> None:
        """Remove closed channels from the network, the gates and the optimizer's state; training goes on.

        Args:
            optimizer: the optimizer of the network's parameters, if there is one.
            averages: averages of its weights, which become smaller too: `torch.optim.swa_utils.AveragedModel`, timm's
                `ModelEmaV3`, or copies of the network.
        """
        if not self._forward.kept():
            return
        check_unsharded(self.model, "shrink_()")
        old_graph, old_forward, kept = self.graph, self._forward, self.kept
        copies = [averaged_network(average, self.model) for average in averages]
        old_forward.last = None  # under torch.compile, the latest draw keeps the old parameters alive
        was_on = detach(old_forward)
        try:
            cut_(self.model, old_graph, kept, optimizer=optimizer)
        except BaseException:
            if was_on:
                attach(old_forward)
            raise
        for each in copies:
            cut_(each, old_graph, kept)
        self._take_over(old_graph, old_forward)
        if was_on:
            attach(self._forward)

    def _take_over(self, old_graph: Hypergraph, forward: GatedForward) -> None:
        """Gates and budget for the network as it is now, with what the old ones had learned."""
        self.graph, old = traced_again(self.model, old_graph), forward.gates
        origin = origin_of(old_graph, self.graph, old)
        old_edges = old.edge_of[origin.first[self.graph.starts[:-1]]]  # the old edge of every new one
        prices = restored_prices(self.cost, self.model, self.graph, self.prices.state_for_cut(self.model, self.graph))
        budget = self.budget.of_cut(self.graph, prices, old_edges)
        self._forward = self._gated_forward(budget.limits, drawn=budget.target is None)
        self._forward.learning = forward.learning
        self.gates.inherit_(old, origin)
        self._use(budget, loss_at_start=self._loss.at_start)

    def detach(self) -> None:
        """Take the gates off: the model computes as it did before, with all its channels."""
        detach(self._forward)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """A table of the edges: living channels, what they are worth (with an alpha, how likely they pass), and their cost."""
        return summary_table(self)

    def live(self) -> AbstractContextManager[None]:
        """A table on the terminal that follows the run: `with pruner.live(): ...`."""
        return live_view(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to resume: gates, closed channels, the budget and the position in the run."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint of the same network, cut as it was then. On an error nothing has changed."""
        load_state_(self, state)
