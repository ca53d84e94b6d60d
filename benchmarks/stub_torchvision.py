"""Let torchvision be imported where its compiled operators are missing (a CPU torch beside a CUDA torchvision).

Only the registration of its own operators is passed over; models, transforms and data sets do not need them.
"""

from typing import Any

import torch


def make_importable() -> None:
    try:
        import torchvision
    except RuntimeError:
        real = torch.library.register_fake

        def lenient(op: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(op, str) and op.startswith("torchvision::"):
                return args[0] if args else lambda function: function
            return real(op, *args, **kwargs)

        torch.library.register_fake = lenient  # type: ignore[assignment]
        import torchvision  # noqa: F401
