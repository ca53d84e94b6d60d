"""What a run is made of: a tree of frozen dataclasses with every setting, its type, and the value it has if not given.

`check` refuses combinations that make no sense before any work is done, and names the key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gator.cost.latency.setup import DEVICES, DTYPES
from gator.errors import RecipeError

SCHEDULES = ("cosine", "steps", "constant")
PRECISIONS = ("no", "bf16", "fp16")
COSTS = ("flops", "memory", "latency")
PER = ("batch", "example")


@dataclass(frozen=True)
class ModelSettings:
    """The network by name (`gator inspect --help` lists the forms) and the weights it starts from."""

    name: str
    weights: str = ""  # a file of weights (safetensors or a state_dict), "pretrained" (torchvision, timm), or none
    input: tuple[int, ...] = ()  # shape of one example, where neither the name nor the data imply it


@dataclass(frozen=True)
class DataSettings:
    """The data by name or folder, and the size of a step."""

    name: str
    batch: int  # examples of one step, over all processes
    sub_batch: int = 0  # examples of one forward and process: a step is made of several; 0: as many as a process has
    folder: str = ""
    test_batch: int = 500
    augment: bool = True
    hold_back: int = 0  # training examples to test on instead of the test set, for choosing settings
    workers: int = 0
    image_size: int = 224
    download: bool = False
    verify: bool = True  # that CIFAR-10 is the published one; of other sets only the structure is known


@dataclass(frozen=True)
class Phase:
    """A stretch of training: epochs, learning rate and its schedule, regularisation."""

    epochs: int = 0
    lr: float = 0.01
    schedule: str = "cosine"
    steps: tuple[int, ...] = ()  # epochs after which the learning rate is multiplied by `factor`
    factor: float = 0.1
    warmup: float = 0.0  # epochs of a linear rise at the start
    optimizer: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0
    clip: float = 0.0  # largest norm of the gradients; 0: any
    distill: float = 0.0  # weight of the dense network's answers in the loss
    temperature: float = 4.0  # of those answers


@dataclass(frozen=True)
class PrunePhase(Phase):
    """Training with gates: what is to be saved, and how much of it."""

    cost: str = "flops"
    target: float | str | None = None  # a share, or a figure such as "300 MMACs", "4 MB", "5 ms"
    alphas: tuple[float, ...] = ()  # or the paper's weights of the cost, one a round, rising
    per: str = "batch"
    gamma: float = 0.2
    gate_weight_decay: float = 0.0
    min_width: int = 0
    round_to: int | str = 1  # channels that widths are multiples of; "auto": the steps that the latency table shows
    keep: tuple[str, ...] = ()
    shrink: bool = True  # at the end of an epoch what is closed leaves the network


@dataclass(frozen=True)
class FinetunePhase(Phase):
    """Training of the cut network."""

    recalibrate: int = 100  # batches for new batch-norm statistics before; 0: none


@dataclass(frozen=True)
class LatencySettings:
    """How latency is measured, in the table at the end and as a cost."""

    runtime: str = "eager"
    method: str = "table"
    batch: int = 1
    rounds: int = 30
    device: str = "auto"  # "auto": that of the run
    threads: int = 0  # 0: as many as the run
    dtype: str = "float32"  # of the network where it is used, whatever it is trained in
    table: str = ""  # a file, instead of the one in the cache folder
    other_device: bool = False  # the table is of another device, and its times are what is wanted


@dataclass(frozen=True)
class RunSettings:
    """Where and how the run is done: it may change the last bits of what is computed, precision more than that."""

    device: str = "auto"
    precision: str = "no"
    threads: int = 0  # 0: as torch has it
    channels_last: bool = False
    compile: bool = False
    checkpoint_seconds: float = 300.0


@dataclass(frozen=True)
class Recipe:
    """A whole run. Phases with zero epochs are left out."""

    name: str
    model: ModelSettings
    data: DataSettings
    prune: PrunePhase
    finetune: FinetunePhase = field(default_factory=FinetunePhase)
    train: Phase = field(default_factory=Phase)
    latency: LatencySettings = field(default_factory=LatencySettings)
    run: RunSettings = field(default_factory=RunSettings)
    seed: int = 0


def check(recipe: Recipe) -> Recipe:
    """The recipe itself, if it can be run."""
    prune, data = recipe.prune, recipe.data
    _need(bool(recipe.name) and "/" not in recipe.name, "name", recipe.name, "a word to call the run by")
    _need(data.batch >= 1, "data.batch", data.batch, "at least one example")
    _need(data.sub_batch >= 0, "data.sub_batch", data.sub_batch, "zero or more examples")
    if data.sub_batch and data.batch % data.sub_batch:
        raise RecipeError(f"data.batch = {data.batch} is not a whole number of data.sub_batch = {data.sub_batch}")
    _need(data.test_batch >= 1, "data.test_batch", data.test_batch, "at least one example")
    _need(all(size >= 1 for size in recipe.model.input), "model.input", recipe.model.input, "sizes of at least 1")
    for key, phase in (("train", recipe.train), ("prune", prune), ("finetune", recipe.finetune)):
        _check_phase(key, phase)
    if recipe.train.distill:
        raise RecipeError("train.distill: there is no dense network to learn from before it is trained; set it to 0")
    _one_of("prune.cost", prune.cost, COSTS)
    _one_of("prune.per", prune.per, PER)
    _need(prune.epochs >= 1, "prune.epochs", prune.epochs, "at least one epoch")
    if (prune.target is None) == (not prune.alphas):
        found = "neither is given" if prune.target is None else "both are given"
        raise RecipeError(f"prune.target or prune.alphas says how much to remove: give one of them ({found})")
    _need(all(a >= 0 for a in prune.alphas), "prune.alphas", prune.alphas, "weights of zero or more")
    if list(prune.alphas) != sorted(prune.alphas):
        raise RecipeError(f"prune.alphas = {list(prune.alphas)} must rise: each round goes on from the one before")
    _need(prune.gamma > 0, "prune.gamma", prune.gamma, "a number above 0")
    _need(prune.gate_weight_decay >= 0, "prune.gate_weight_decay", prune.gate_weight_decay, "zero or more")
    if not isinstance(prune.target, str) and prune.target is not None:
        _need(0 < prune.target <= 1, "prune.target", prune.target, 'a share above 0 and up to 1, or a figure: "300 MMACs"')
    _need(prune.min_width >= 0, "prune.min_width", prune.min_width, "zero or more channels")
    auto = prune.round_to == "auto"
    _need(
        auto or (isinstance(prune.round_to, int) and prune.round_to >= 1),
        "prune.round_to",
        prune.round_to,
        '1 or more, or "auto"',
    )
    if auto and (prune.cost != "latency" or recipe.latency.method != "table"):
        needed = 'prune.cost = "latency" and latency.method = "table"'
        raise RecipeError(f'prune.round_to = "auto" asks a latency table for steps: it needs {needed}')
    _need(recipe.finetune.recalibrate >= 0, "finetune.recalibrate", recipe.finetune.recalibrate, "zero or more batches")
    _one_of("latency.method", recipe.latency.method, ("table", "probe"))
    _one_of("latency.device", recipe.latency.device, ("auto", *DEVICES))
    _one_of("latency.dtype", recipe.latency.dtype, tuple(DTYPES))
    _need(recipe.latency.threads >= 0, "latency.threads", recipe.latency.threads, "zero (as many as the run) or more")
    if recipe.latency.other_device and not recipe.latency.table:
        raise RecipeError("latency.other_device needs latency.table, the file that was made on the other device")
    _need(recipe.latency.batch >= 1, "latency.batch", recipe.latency.batch, "at least one example")
    _need(recipe.latency.rounds >= 1, "latency.rounds", recipe.latency.rounds, "at least one round")
    _one_of("run.precision", recipe.run.precision, PRECISIONS)
    _need(recipe.run.threads >= 0, "run.threads", recipe.run.threads, "zero (as torch has it) or more")
    _need(recipe.run.checkpoint_seconds >= 0, "run.checkpoint_seconds", recipe.run.checkpoint_seconds, "zero or more")
    return recipe


def _check_phase(key: str, phase: Phase) -> None:
    _need(phase.epochs >= 0, f"{key}.epochs", phase.epochs, "zero or more epochs")
    _need(phase.lr > 0, f"{key}.lr", phase.lr, "a learning rate above 0")
    _one_of(f"{key}.schedule", phase.schedule, SCHEDULES)
    _one_of(f"{key}.optimizer", phase.optimizer, ("sgd", "adamw"))
    if (phase.schedule == "steps") != bool(phase.steps):
        raise RecipeError(f'{key}.steps goes with {key}.schedule = "steps": the epochs after which the learning rate falls')
    inside = all(0 < step < phase.epochs for step in phase.steps)
    rising = list(phase.steps) == sorted(set(phase.steps))
    if phase.epochs and not (inside and rising):
        raise RecipeError(f"{key}.steps = {list(phase.steps)} must rise and lie between 0 and {key}.epochs = {phase.epochs}")
    _need(0 <= phase.warmup <= max(phase.epochs, 0), f"{key}.warmup", phase.warmup, f"0 to {key}.epochs")
    _need(0 <= phase.momentum < 1, f"{key}.momentum", phase.momentum, "0 or more and below 1")
    if phase.nesterov and not phase.momentum:
        raise RecipeError(f"{key}.nesterov needs {key}.momentum above 0")
    _need(phase.weight_decay >= 0, f"{key}.weight_decay", phase.weight_decay, "zero or more")
    _need(0 <= phase.label_smoothing < 1, f"{key}.label_smoothing", phase.label_smoothing, "0 or more and below 1")
    _need(phase.clip >= 0, f"{key}.clip", phase.clip, "zero (off) or more")
    _need(0 <= phase.distill <= 1, f"{key}.distill", phase.distill, "a share from 0 to 1")
    _need(phase.temperature > 0, f"{key}.temperature", phase.temperature, "a number above 0")
    _need(0 < phase.factor <= 1, f"{key}.factor", phase.factor, "a factor above 0 and up to 1")


def _need(holds: bool, key: str, found: object, expected: str) -> None:
    if not holds:
        raise RecipeError(f"{key} = {found!r}; expected {expected}")


def _one_of(key: str, found: str, allowed: tuple[str, ...]) -> None:
    _need(found in allowed, key, found, " or ".join(repr(a) for a in allowed))
