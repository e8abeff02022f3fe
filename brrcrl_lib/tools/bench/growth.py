"""How the cost of a decision and of a training step grows when one size grows and the others stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from matplotlib.axes import Axes

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.batch import Batch, Facts
from brrcrl_lib.inference.optimizers import CrossEntropy, Problem
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.br_rcrl import BayesianModel, BrRcrlConfig, Negatives, bayesian_loss

OBSERVATIONS = 17
DECISION = {"samples": (12, 48, 192, 768), "states": (1, 10, 100), "actions": (3, 6, 12, 24), "buckets": (20, 80, 320)}
TRAINING = {"negatives": (4, 16, 64, 256), "batch": (64, 256, 1024), "actions": (3, 6, 12, 24),
            "buckets": (20, 80, 320)}  # fmt: skip
USUAL = {"samples": 48, "states": 10, "actions": 6, "buckets": 80, "negatives": 16, "batch": 256}

Growth = dict[str, dict[str, float]]  # size: {value: milliseconds}


def milliseconds(action: Callable[[], Any], repeats: int) -> float:
    """Median time of one call, after one that warms up."""
    action()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return 1e3 * sorted(times)[len(times) // 2]


def growth(repeats: int) -> dict[str, Growth]:
    """Milliseconds of a batched decision and of a training step (forward and backward), one size at a time."""
    tables: dict[str, Growth] = {}
    for cost, measure, grid in (("decision", decision, DECISION), ("training step", training_step, TRAINING)):
        tables[cost] = {
            name: {str(value): round(milliseconds(measure({**USUAL, name: value}), repeats), 2) for value in values}
            for name, values in grid.items()
        }
    return tables


def _model(sizes: Mapping[str, int]) -> BayesianModel:
    box = (1.0,) * sizes["actions"]
    facts = Facts(
        dataset="random numbers",
        env=None,
        observation_shape=(OBSERVATIONS,),
        discount=0.99,
        reward_clip=None,
        return_range=(0.0, 100.0),
        return_quantiles=(0.0, 100.0),
        action_low=tuple(-end for end in box),
        action_high=box,
    )
    return create(BrRcrlConfig(buckets=sizes["buckets"]), facts).model


def decision(sizes: Mapping[str, int]) -> Callable[[], Any]:
    """Choosing an action in `states` states at once with the default optimiser."""
    model = _model(sizes)
    states = torch.randn(sizes["states"], OBSERVATIONS, generator=generator(0))
    bucket = torch.full((sizes["states"],), sizes["buckets"] // 2)

    @torch.no_grad()
    def decide() -> Any:
        prior, encoded = model.prior(states), model.returns.encode(states)
        problem = Problem(lambda a: model.energy(prior, encoded, a, bucket), prior.sample, prior.low, prior.high)
        return CrossEntropy(sizes["samples"]).minimise(problem, generator(0))

    return decide


def training_step(sizes: Mapping[str, int]) -> Callable[[], Any]:
    """The loss of one batch and its gradient."""
    model, rng = _model(sizes), generator(0)
    count = sizes["batch"]
    batch = Batch(
        observations=torch.randn(count, OBSERVATIONS, generator=rng),
        actions=torch.rand(count, sizes["actions"], generator=rng),
        returns=100 * torch.rand(count, generator=rng),
        rewards=torch.zeros(count),
        done=torch.zeros(count, dtype=torch.bool),
        indices=torch.arange(count),
    )
    negatives = Negatives.draw(batch.actions, sizes["negatives"], 0.5, rng)
    return lambda: bayesian_loss(model, batch, negatives)["loss"].backward()


def draw_growth(axis: Axes, table: Growth) -> None:
    """Milliseconds against size, in multiples of the usual one; the dotted line costs in proportion."""
    for (name, times), marker in zip(table.items(), "os^D", strict=True):
        factors = [int(value) / USUAL[name] for value in times]
        axis.plot(factors, list(times.values()), f"{marker}-", label=f"{name} (usually {USUAL[name]})")
    usual = table["buckets"][str(USUAL["buckets"])]
    axis.plot([1 / 4, 16], [usual / 4, usual * 16], color="black", lw=1, ls=":", label="in proportion")
    axis.set(xscale="log", yscale="log", xlabel="size, in multiples of the usual one", ylabel="milliseconds")
    axis.legend(fontsize=8)
