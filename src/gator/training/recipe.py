"""The settings of a run: a tree of frozen dataclasses with every key, its type and its default.

These classes are the only list of keys: recipe_file.py reads them from TOML, and recipe_check.py checks their values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gator.cost.by_name import CostName
from gator.cost.latency.runtimes.run_setup import DtypeName, LatencyMethod, RuntimeName
from gator.gates.limits import RoundTo
from gator.gates.one_shot import Criterion
from gator.gates.settings import Per

ScheduleName = Literal["cosine", "steps", "constant"]
AnnealName = Literal["auto", "restart", "continue"]
OptimizerName = Literal["sgd", "adamw"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["no", "bf16", "fp16"]


@dataclass(frozen=True)
class ModelSettings:
    """The network by name (`gator inspect --help` lists the forms) and its initial weights."""

    name: str
    weights: str = ""  # a file (safetensors or a state_dict), "pretrained" (torchvision, timm), or "": random weights
    input: tuple[int, ...] = ()  # the shape of one example, without the batch; needed if neither network nor data imply it


@dataclass(frozen=True)
class DataSettings:
    """The data set by name or folder, and the batch size."""

    name: str
    batch: int  # examples per optimizer step, over all processes
    sub_batch: int = 0  # examples per forward pass and process (gradients are accumulated); 0: all that a process has
    folder: str = ""
    test_batch: int = 500
    augment: bool = True
    hold_back: int = 0  # training examples to evaluate on instead of the test set, while settings are chosen
    workers: int = 0
    image_size: int = 224
    download: bool = False
    verify: bool = True  # compare CIFAR-10 with its published checksums; for other sets only the structure is checked


@dataclass(frozen=True)
class Phase:
    """A phase of training: epochs, learning rate and its schedule, regularization."""

    epochs: int = 0
    lr: float = 0.01
    schedule: ScheduleName = "cosine"
    steps: tuple[int, ...] = ()  # epochs after which the learning rate is multiplied by `factor`
    factor: float = 0.1
    warmup: float = 0.0  # epochs in which the learning rate rises linearly to `lr`
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    clip: float = 0.0  # maximum norm of the gradients; 0: no clipping
    distill: float = 0.0  # weight of the distillation loss, with the dense network as the teacher
    temperature: float = 4.0  # of the distillation


@dataclass(frozen=True)
class PrunePhase(Phase):
    """Training with gates: which cost to reduce, and to how much. The defaults are those of gator.Pruner."""

    cost: CostName = "flops"
    target: float | str | None = None  # a share (0.5, "50%") or an absolute figure such as "300 MMACs", "4 MB", "5 ms"
    targets: tuple[float | str, ...] = ()  # instead: several, falling; every round continues from the gated weights of the last
    alphas: tuple[float, ...] = ()  # instead: weights of the cost in the loss (eq. 4), one per round, rising
    max_drop: float | None = None  # points of accuracy that may be lost, on held-back data: stops before a target loses more
    bisections: int = 2  # with max_drop, targets to try between the last that kept it and the first that did not
    gated: float = 1.0  # with a target: the share of the steps that the schedule takes; it is reached after 0.75 of them
    criterion: Criterion | Literal["function"] | None = None  # with epochs = 0: choose channels by this instead of by gates
    per: Per = "example"  # gates per example (as in the paper) or per batch (a little faster)
    gamma: float = 0.2  # with alphas: the learning rate of the gates, as a multiple of lr
    gate_weight_decay: float = 0.0  # with alphas
    min_width: int = 0
    round_to: RoundTo = "auto"  # widths become multiples of this; "auto": of the blocks that kernels process
    keep: tuple[str, ...] = ()
    keep_class: bool = False  # remove only what the class of the network can lose
    shrink: bool = True  # remove closed channels from the network at the end of an epoch


@dataclass(frozen=True)
class FinetunePhase(Phase):
    """Training of the cut network."""

    # "restart": the learning rate starts at `lr` again. "continue": it goes on falling from where [prune] ended, one annealing
    # of [prune] over both phases. "auto": "continue" for a short run to one target, else "restart".
    anneal: AnnealName = "auto"
    recalibrate: int = 100  # batches to recompute batch-norm statistics with, before fine-tuning; 0: keep the old ones


@dataclass(frozen=True)
class LatencySettings:
    """How latency is measured, for the result table and as a cost."""

    runtime: RuntimeName = "eager"
    method: LatencyMethod = "table"
    batch: int = 1
    rounds: int = 30  # minimum number of timed runs of every network; values below 5 are exact, for trials
    device: DeviceName = "auto"  # "auto": the device of the run
    threads: int = 0  # 0: as many as the run uses
    dtype: DtypeName = "float32"  # of the deployed network, independent of the training precision
    table: str = ""  # a file, instead of the one in the cache folder
    other_device: bool = False  # use the table although it was measured on another device


@dataclass(frozen=True)
class RunSettings:
    """Where and how to train. These settings may change the rounding of a result; only `precision` changes more than that."""

    device: DeviceName = "auto"
    precision: PrecisionName = "no"
    threads: int = 0  # 0: leave the number of threads as it is
    channels_last: bool | Literal["auto"] = "auto"  # "auto": for networks with 2-d convolutions
    compile: bool = False
    checkpoint_seconds: float = 300.0
    timeout_seconds: float = 0.0  # how long a process waits for the others; 0: as torch.distributed does, 30 minutes or less
    evaluate_every: int = 1  # epochs; 0: only the dense, the cut and the finished network are evaluated

    @property
    def in_channels_last(self) -> bool:
        """False for "auto" too: a run decides that first."""
        return self.channels_last is True


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. `gator.read_recipe` reads one from TOML, and `gator.run` carries it out.

    The tables are frozen dataclasses as well; change one with dataclasses.replace, or with the second argument of
    `gator.read_recipe`. Phases with zero epochs are skipped.

    >>> recipe = gator.read_recipe("digits")
    >>> recipe.prune.target, recipe.prune.cost, recipe.data.batch
    (0.5, 'flops', 64)
    """

    name: str  # of the run folder, under runs/
    model: ModelSettings
    data: DataSettings
    prune: PrunePhase  # training with gates
    finetune: FinetunePhase = field(default_factory=FinetunePhase)  # training of the cut network
    train: Phase = field(default_factory=Phase)  # training of the dense network, before any gates
    latency: LatencySettings = field(default_factory=LatencySettings)
    run: RunSettings = field(default_factory=RunSettings)
    seed: int = 0
