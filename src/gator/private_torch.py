"""Everything the library uses of torch that is not public, in one place.

Checked with torch 2.9 and 2.13. A release without one of these names is refused on import, with the name; what merely behaves
differently between releases has a function here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from gator.errors import GatorError

CHECKED = "2.9 to 2.13"

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
    from torch.utils._python_dispatch import TorchDispatchMode
except (ImportError, AttributeError) as error:
    raise GatorError(
        f"torch {torch.__version__} lacks a name that gator needs: {error}\n"
        f"  Install a release from {CHECKED}, or upgrade gator."
    ) from error

__all__ = [
    "BatchNorm", "Conv", "FakeTensor", "InstanceNorm", "NormBase", "OpOverload", "TorchDispatchMode", "children_of",
    "forward_from_source", "is_composite", "no_torch_function", "pytree", "views_untracked",
]  # fmt: skip


def children_of(structure: pytree.TreeSpec) -> Sequence[pytree.TreeSpec]:
    """The parts of a structure; from torch 2.10 on a method returns them, and the attribute is deprecated."""
    return structure.children() if "children" in vars(pytree.TreeSpec) else structure.children_specs


def views_untracked() -> AbstractContextManager[Any]:
    """Inside, views and in-place operators are not tracked, as for tensors that need no gradient."""
    guard: AbstractContextManager[Any] = _ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView))
    return guard


def is_composite(op: OpOverload) -> bool:
    """Whether torch runs this operator as a composition of others in all cases."""
    return bool(_dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"))  # type: ignore[no-untyped-call]
