"""The program that a network runs: a flat list of ATen calls on numbered values.

It is plain data: recording creates it, the rules label it, surgery rewrites it. A size that depends on the batch size is a
`BatchInt`, an int that also knows its formula, so that a rewritten program runs at any batch size; `ImageInt` does the same for
the height and width of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gator.private_torch import OpOverload

Mode = Literal["train", "eval"]
MODES: tuple[Mode, Mode] = ("train", "eval")
Origin = Literal["input", "attribute", "constant", "call"]  # where a value comes from
Argument = tuple[str, int | None]  # the name of an argument, and the position in it if it is a list


class BatchInt(int):
    """An integer equal to `slope * batch + offset`; as a plain int it is the value at the recorded batch size."""

    slope: int
    offset: int

    def __new__(cls, slope: int, offset: int, batch: int) -> BatchInt:
        self = super().__new__(cls, slope * batch + offset)
        self.slope, self.offset = slope, offset
        return self

    def __reduce__(self) -> Any:
        batch = (int(self) - self.offset) // self.slope if self.slope else 0
        return (BatchInt, (self.slope, self.offset, batch))


class ImageInt(int):
    """An integer that depends on the height and width of the images; as a plain int it is the value at the recorded ones.

    `growth` is how much it grows from there per STEP of height, per STEP of width, and per STEP of both beyond their sum.
    """

    STEP = 64  # pixels: a multiple of the total stride of most networks
    growth: tuple[int, int, int]

    def __new__(cls, value: int, growth: tuple[int, int, int]) -> ImageInt:
        self = super().__new__(cls, value)
        self.growth = growth
        return self

    def __reduce__(self) -> Any:
        return (ImageInt, (int(self), self.growth))


@dataclass(frozen=True)
class Ref:
    """A reference to value `id` inside the arguments of a call or the outputs of a program."""

    id: int


@dataclass(frozen=True)
class Value:
    """One tensor of the program: an input, an attribute (parameter or buffer) of the model, a constant or a result."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    origin: Origin
    name: str  # of the input, attribute or constant; of the operator for a call
    storage: int  # values with the same number share memory: an in-place op on one changes the others


@dataclass(frozen=True)
class Place:
    """Where the user's code makes a call: which call of a torch function it is in one run of a module."""

    module: str
    visit: int  # which run of the module, counted from 0
    function: str
    ordinal: int  # which call of the function in that run


@dataclass(frozen=True)
class Call:
    """One operator call. Arguments are keyed by their name in the operator's schema."""

    index: int
    op: OpOverload
    args: dict[str, Any]
    outputs: tuple[int | None, ...]
    module: str  # qualified name of the innermost module that was running
    source: str  # file:line of the user's code
    mutates: int | None = None  # the value that an in-place call overwrites
    frozen: bool = False  # ran under no_grad: no gradient flows through its result
    origin: str = ""  # in a rewritten network: the name of the call it was made from (call_names.py)
    place: Place | None = None  # None if no function of the user's code runs this operator and nothing else

    @property
    def packet(self) -> Any:
        return self.op.overloadpacket

    @property
    def draws(self) -> bool:
        """Whether the call draws random numbers: for dropout and attention this depends on the arguments."""
        if torch.Tag.nondeterministic_seeded not in self.op.tags:
            return False
        if "train" in self.args:
            return bool(self.args["train"])
        return self.packet is not torch.ops.aten.scaled_dot_product_attention or bool(self.args.get("dropout_p"))

    def value_at(self, argument: Argument | str) -> int:
        """The value that is passed as this argument (or as one position of it, if it is a list)."""
        name, position = (argument, None) if isinstance(argument, str) else argument
        found: Any = self.args[name] if position is None else self.args[name][position]
        assert isinstance(found, Ref), f"{name} of {self.where()} is {found!r}, not a tensor"
        return found.id

    def tensors(self) -> Iterator[tuple[Argument, int]]:
        """Every tensor argument with its value."""
        for name, arg in self.args.items():
            if isinstance(arg, Ref):
                yield (name, None), arg.id
            elif isinstance(arg, (list, tuple)):
                for position, item in enumerate(arg):
                    if isinstance(item, Ref):
                        yield (name, position), item.id

    def where(self) -> str:
        place = f" in {self.module}" if self.module else ""
        return f"{self.packet.__name__} at {self.source}{place}"


@dataclass(frozen=True)
class Program:
    """All calls of one forward pass, in order, for one mode (train or eval)."""

    training: bool
    batch: int | None  # the recorded batch size; None if the program runs at no other
    values: tuple[Value, ...]
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: Any  # what the network returns, flat, and its structure; Ref in place of tensors, None for outputs not asked for
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    folded: bool = True  # whether integer tensors that depend on constants alone were computed instead of recorded
    output_names: tuple[str, ...] = ()  # of the flat outputs
    notes: tuple[str, ...] = ()  # what the recording assumed
    assigned: dict[str, int] = field(default_factory=dict)  # parameters whose data forward replaces -> their last value
    decided_by_draws: tuple[str, ...] = ()  # where the network decided by a random draw what to compute

    def attributes(self) -> Iterator[Value]:
        return (value for value in self.values if value.origin == "attribute")


def map_refs(arg: Any, change: Callable[[Ref], Any]) -> Any:
    """The argument with every Ref replaced, also inside lists, tuples and dicts."""
    if isinstance(arg, Ref):
        return change(arg)
    if isinstance(arg, (list, tuple)):
        items = [map_refs(item, change) for item in arg]
        if hasattr(arg, "_fields"):
            return type(arg)(*items)
        return type(arg)(items)
    if isinstance(arg, dict):
        return {key: map_refs(item, change) for key, item in arg.items()}
    return arg


def same_tensors(one: Program, two: Program) -> bool:
    """Whether values with the same number are the same inputs, parameters, constants and results in both programs."""
    return len(one.values) == len(two.values) and all(
        (a.origin, a.name, a.dtype) == (b.origin, b.name, b.dtype) for a, b in zip(one.values, two.values, strict=True)
    )


def same_calls(one: Program, two: Program) -> bool:
    """Whether both programs make the same calls on the same tensors."""
    return (
        same_tensors(one, two)
        and len(one.calls) == len(two.calls)
        and all(a.op is b.op and a.args == b.args for a, b in zip(one.calls, two.calls, strict=True))
    )


def needed(program: Program, gone: frozenset[int] = frozenset()) -> frozenset[int]:
    """The calls that the outputs depend on, directly or through memory they share. Values in `gone` are not computed."""
    values = {leaf.id for leaf in program.outputs[0] if isinstance(leaf, Ref)}
    storages = {program.values[v].storage for v in values}
    found = set()
    for call in reversed(program.calls):
        outputs = [v for v in call.outputs if v is not None]
        if outputs and all(v in gone for v in outputs):
            continue
        wanted = any(v in values for v in outputs)
        if call.mutates is not None:
            target = program.values[call.mutates]
            wanted = wanted or target.storage in storages or target.origin == "attribute"
        if wanted:
            found.add(call.index)
            for _, value in call.tensors():
                if value not in gone:
                    values.add(value)
                    storages.add(program.values[value].storage)
    return frozenset(found)
