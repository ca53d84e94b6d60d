"""Ultralytics without a network, and without the compiled operators of torchvision where those are missing."""

from __future__ import annotations

import os
import tempfile


def make_usable() -> None:
    """Prepare the import of Ultralytics: it neither goes online nor writes to the home folder, and finds an nms."""
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.mkdtemp())
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    from stub_torchvision import make_importable

    make_importable()
    import torch
    import torchvision
    from ultralytics.utils import checks, downloads
    from ultralytics.utils.nms import TorchNMS

    downloads.is_url = lambda *_, **__: False  # it asks for a font, whether online or not
    checks.check_pip_update_available = lambda: False
    try:
        torchvision.ops.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except RuntimeError:
        torchvision.ops.nms = TorchNMS.nms
