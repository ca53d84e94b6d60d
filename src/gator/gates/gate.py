"""`Gates`: what drawn and open gates have in common. There is one gate per channel, the same for all readers of the channel.

`DrawnGates` (for an alpha) decide how many channels close, as in the paper; `OpenGates` (for a target) find out which channels
are worth the least. Closed channels stay closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gator.graph.hypergraph import Hypergraph

if TYPE_CHECKING:
    from typing_extensions import Self

    from gator.gates.channel_origin import Origin


class Gates(ABC):
    """The gates of all edges, as flat tensors in the order of the graph's edges.

    Edges in `shared` have a reader without a batch axis, so that their examples cannot have gates of their own.
    """

    learned: ClassVar[tuple[str, ...]]  # the tensors that a checkpoint holds, and that the gates of a smaller network inherit

    def __init__(
        self, graph: Hypergraph, *, device: torch.device, dtype: torch.dtype, shared: frozenset[int] = frozenset()
    ) -> None:
        self.starts = graph.starts
        self.edge_of: NDArray[np.int64] = np.repeat(np.arange(len(graph.edges)), np.diff(graph.starts))
        self.alive = torch.ones(len(self.edge_of), dtype=torch.bool, device=device)
        self.device, self.dtype = device, dtype
        self._shared = torch.from_numpy(np.isin(self.edge_of, sorted(shared))).to(device)

    def __len__(self) -> int:
        return len(self.edge_of)

    @abstractmethod
    def of_forward(self, rows: int, examples: int) -> Tensor:
        """Zeros and ones, rows x channels, for a forward of so many examples. Every reader takes its part through `read`."""

    def read(self, gates: Tensor, channels: slice | Tensor, examples: int) -> Tensor:  # noqa: ARG002
        """What one reader multiplies by: `gates` are the columns of these channels in what `of_forward` returned."""
        return gates

    @abstractmethod
    def taken_gradient(self, scale: Tensor, squared_scale: Tensor) -> Tensor:
        """Return what `update_` learns from, summed since the last call, and reset it: gradients, or squares of them.

        It is scaled as the loss was: by `scale` in all; the squares of the scales of all backwards add up to `squared_scale`.
        """

    @abstractmethod
    def update_(self, gradient: Tensor, price: Tensor, lr: float) -> None:
        """Learn from the mean of `taken_gradient` over a step; `price` is what a channel costs (lambda of eq. 5 and 6)."""

    @property
    @abstractmethod
    def probabilities(self) -> Tensor:
        """How likely each channel is to pass; 0 for closed ones."""

    def living(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.alive.cpu().numpy()
        return found

    def widths(self) -> NDArray[np.int64]:
        """The number of living channels of every edge."""
        return np.bincount(self.edge_of[self.living()], minlength=len(self.starts) - 1)

    def of_edge(self, index: int) -> slice:
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def keep_only_(self, alive: NDArray[np.bool_]) -> None:
        """Close all other channels for good."""
        self.alive = torch.from_numpy(alive.copy()).to(self.device)

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).detach().clone() for name in ("alive", *self.learned)}

    @torch.no_grad()
    def load_(self, state: Mapping[str, Tensor]) -> None:
        self.alive = state["alive"].to(self.device).clone()
        for name in self.learned:
            getattr(self, name).copy_(state[name])

    @abstractmethod
    def inherit_(self, old: Self, origin: Origin) -> None:
        """Take over what the gates of a larger network have learned."""
