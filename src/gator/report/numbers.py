"""Numbers as a reader wants them: few digits, thousands apart, the same form in every table."""

from __future__ import annotations


def compact(value: float) -> str:
    """1,254,928 as 1.25 M."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}" if abs(value) < 999.5 * factor else f"{value / factor:.0f} {unit}"
    return f"{value:g}"


def percent(share: float) -> str:
    """0.4985 as 49.9 %, in which the line is not broken."""
    return f"{100 * share:.3g}\u00a0%" if abs(share) < 0.9995 else f"{100 * share:.0f}\u00a0%"


def milliseconds(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def points(difference: float) -> str:
    """A difference of two accuracies, with its sign."""
    return f"{difference:+.2f}".replace("-", "\u2212")


_RUNTIMES = {"eager": "PyTorch", "compile": "torch.compile", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
_COSTS = {"flops": "FLOPs"}


def runtime_name(runtime: str) -> str:
    """A runtime as its makers spell it."""
    return _RUNTIMES.get(runtime, runtime)


def cost_name(cost: str) -> str:
    return _COSTS.get(cost, cost)


def duration(seconds: float) -> str:
    """127 as 2 min 7 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
