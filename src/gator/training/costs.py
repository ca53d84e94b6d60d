"""The cost that a recipe names, as an object for the pruner, and the conditions under which latency is measured."""

from __future__ import annotations

from dataclasses import replace

from gator.cost.by_name import cost_of
from gator.cost.latency.latency import Latency
from gator.cost.latency.runtimes.run_setup import Setup
from gator.cost.prices import Cost
from gator.training.recipe import Recipe

KEEP_LAYOUT = ("eager", "compile")  # runtimes that keep the memory layout of a network; the others choose their own


def cost_for(recipe: Recipe, device: str) -> Cost:
    """The cost to reduce. Latency is measured as [latency] says; `device` is the device of the run."""
    return _latency(recipe, device) if recipe.prune.cost == "latency" else cost_of(recipe.prune.cost)


def setup_for(recipe: Recipe, device: str) -> Setup:
    """The conditions for timing the finished networks: on this machine, even if the latency table is of another device."""
    settings = recipe.latency
    here = replace(settings, runtime="eager", device="auto", other_device=False) if settings.other_device else settings
    return _latency(replace(recipe, latency=here), device).setup


def _latency(recipe: Recipe, device: str) -> Latency:
    settings = recipe.latency
    return Latency(
        runtime=settings.runtime,
        method=settings.method,
        batch=settings.batch,
        threads=settings.threads or recipe.run.threads or None,
        channels_last=recipe.run.in_channels_last and settings.runtime in KEEP_LAYOUT,
        dtype=settings.dtype,
        device=device if settings.device == "auto" else settings.device,
        rounds=settings.rounds,
        table=settings.table,
        other_device=settings.other_device,
    )
