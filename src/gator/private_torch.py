"""Everything the library uses of torch that is not public, in one place.

Checked with torch 2.9.1 and 2.13.0 (`make test-torch VERSION=...` checks another release). A release without one of these names
is refused on import, with the name; what merely behaves differently between releases has a function here. Operators
(`torch.ops.aten`) are not listed: `graph/rules` is their list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from gator.errors import UnsupportedTorchError

OLDEST, NEWEST = "2.9.1", "2.13.0"  # releases that were checked

try:
    from torch._C import _disabled_torch_function_impl as no_torch_function
    from torch._C import _dispatch_has_kernel_for_dispatch_key, _ExcludeDispatchKeyGuard
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.graph_module import _forward_from_src as forward_from_source
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
    from torch.nn.modules.batchnorm import _NormBase as NormBase
    from torch.nn.modules.conv import _ConvNd as Conv
    from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm
    from torch.utils import _pytree as pytree
    from torch.utils import checkpoint as _checkpoint
    from torch.utils._python_dispatch import TorchDispatchMode

    make_wrapper_subclass = Tensor._make_wrapper_subclass
    CALL_IMPL = nn.Module._call_impl.__code__  # the code that runs while a module is called
    # Attributes of objects, which the functions below read.
    _ATTRIBUTES = (
        torch.ops.aten.add.Tensor._schema,
        torch.ops.aten.add.Tensor._overloadname,
        torch.empty(0).untyped_storage()._cdata,
        nn.Module()._modules,
        nn.Module()._parameters,
        nn.Module()._buffers,
        nn.Module()._forward_pre_hooks,
        torch.compiler._is_compiling_flag,
        torch.compiler._is_exporting_flag,
        torch._C._autograd._top_saved_tensors_default_hooks,
        _checkpoint._checkpoint_without_reentrant_generator,
    )
except (ImportError, AttributeError) as error:
    raise UnsupportedTorchError(
        f"torch {torch.__version__} lacks a name that gator needs: {error}\n"
        f"  Install a torch release from {OLDEST} to {NEWEST}, or upgrade gator."
    ) from error

__all__ = [
    "CALL_IMPL", "NEWEST", "OLDEST", "BatchNorm", "Conv", "FakeTensor", "InstanceNorm", "NormBase", "OpOverload",
    "TorchDispatchMode", "accumulated_shape", "buffers_of", "checkpoints_run_directly", "children_of", "forward_from_source",
    "forward_pre_hooks_of", "full_name_of", "is_composite", "key_texts", "make_wrapper_subclass", "no_torch_function",
    "overload_name_of", "parameters_of", "pytree", "saves_tensors_itself", "say_exporting", "schema_of", "storage_number",
    "submodules_of", "views_untracked",
]  # fmt: skip


def children_of(structure: pytree.TreeSpec) -> Sequence[pytree.TreeSpec]:
    """The parts of a structure; from torch 2.10 on a method returns them, and the attribute is deprecated."""
    return structure.children() if "children" in vars(pytree.TreeSpec) else structure.children_specs


def key_texts(tree: Any) -> tuple[str, ...] | None:
    """The path of every leaf, its keys joined by dots; None if a class in the tree was registered without keys."""
    try:
        paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    except ValueError:
        return None
    return tuple(".".join(_key_text(key) for key in path) for path in paths)


def _key_text(key: Any) -> str:
    if isinstance(key, pytree.MappingKey):
        return str(key.key)
    return str(key.idx) if isinstance(key, pytree.SequenceKey) else str(key).lstrip(".")


def views_untracked() -> AbstractContextManager[Any]:
    """Inside, views and in-place operators are not tracked, as for tensors that need no gradient."""
    guard: AbstractContextManager[Any] = _ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView))
    return guard


def say_exporting() -> Callable[[], None]:
    """Make `torch.compiler.is_exporting()` and `is_compiling()` true, as `torch.export` does; returns how to undo it."""
    compiling, exporting = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
    torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True

    def undo() -> None:
        torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = compiling, exporting

    return undo


def checkpoints_run_directly(here: Callable[[], bool]) -> Callable[[], None]:
    """Where `here()` is true, `torch.utils.checkpoint` calls its function and keeps nothing to recompute; returns the undo."""
    original = _checkpoint._checkpoint_without_reentrant_generator

    def around_the_call(*args: Any, **kwargs: Any) -> Iterator[None]:
        if here():
            yield
        else:
            yield from original(*args, **kwargs)

    def undo() -> None:
        _checkpoint._checkpoint_without_reentrant_generator = original

    _checkpoint._checkpoint_without_reentrant_generator = around_the_call
    return undo


def saves_tensors_itself() -> bool:
    """Whether autograd keeps tensors for backward as they are, without hooks such as those of gradient checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def is_composite(op: OpOverload) -> bool:
    """Whether torch runs this operator as a composition of others in all cases."""
    return bool(_dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))  # type: ignore[no-untyped-call]


def schema_of(op: Any) -> Any:
    """The names, types and defaults of an operator's arguments, and what it returns."""
    return op._schema


def full_name_of(op: OpOverload) -> str:
    """The name of an operator with its library, without the overload: aten::add."""
    return str(op._schema.name)


def overload_name_of(op: Any) -> str:
    """The last part of an operator's name: Tensor of `aten.add.Tensor`."""
    return str(op._overloadname)


def storage_number(tensor: Tensor) -> int:
    """A number that tensors share if their memory is the same, also on the meta device, where there are no addresses."""
    return int(tensor.untyped_storage()._cdata)


def submodules_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """The modules directly inside a module by attribute, also those that are there twice."""
    return module._modules


def parameters_of(module: nn.Module) -> MutableMapping[str, nn.Parameter | None]:
    """The parameters of a module itself by attribute; assign to replace one."""
    return module._parameters


def buffers_of(module: nn.Module) -> MutableMapping[str, Tensor | None]:
    """The buffers of a module itself by attribute; assign to replace one, which stays persistent or not as it was."""
    return module._buffers


def forward_pre_hooks_of(module: nn.Module) -> Mapping[int, Any]:
    """The hooks that run before the forward of a module."""
    return module._forward_pre_hooks


def accumulated_shape(accumulator: Any) -> tuple[int, ...]:
    """The shape of the gradients that the last node of an autograd graph adds to a parameter."""
    return tuple(accumulator._input_metadata[0].shape)
