"""What a pruner may be asked for: wrong settings are refused before any work is done."""

from __future__ import annotations

from gator.errors import GatorError


def check_settings(
    alpha: float | None,
    target: float | str | None,
    steps: int | None,
    per: str,
    gamma: float,
    momentum: float,
    weight_decay: float,
    temperature: float,
) -> None:
    if (alpha is None) == (target is None):
        raise GatorError("pass alpha= (the weight of the cost) or target= (what may be left of it): one of them, not both")
    if alpha is not None and not alpha >= 0:
        raise GatorError(f"alpha={alpha!r}; expected zero or more")
    if (target is None) != (steps is None):
        raise GatorError("target= and steps= go together: in how many steps the target is to be met")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise GatorError(f"steps={steps!r}; expected a whole number of steps, 1 or more")
    if per not in ("example", "batch"):
        raise GatorError(f'per={per!r}; expected "example" or "batch"')
    for name, value, least in (("gamma", gamma, 0.0), ("temperature", temperature, 0.0)):
        if not value > least:
            raise GatorError(f"{name}={value!r}; expected more than zero")
    if not 0 <= momentum < 1:
        raise GatorError(f"momentum={momentum!r}; expected 0 or more and less than 1")
    if not weight_decay >= 0:
        raise GatorError(f"weight_decay={weight_decay!r}; expected zero or more")
