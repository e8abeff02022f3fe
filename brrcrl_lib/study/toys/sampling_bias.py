"""Sampling bias dominance (the paper's Figure 1): when does Bayes' rule help to condition on a rare return?

Random worlds with a known answer p(up|s,R=1) (see rare_worlds.py) are learned in two ways with equally many weights:

    vanilla   one network for p(a|s,R), the return is an input                 (the paper's L_RCRL)
    bayes     two networks, p(a|s) and p(R|s,a), multiplied by Bayes' rule     (the paper's Bayesian reparameterization)

Hundreds of small networks train at once: every weight has a leading axis, one entry per dataset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.devices import generator, track
from brrcrl_lib.base.files import ROOT, git_revision, write_csv
from brrcrl_lib.study.toys.rare_worlds import SCENARIOS, Dataset, draw_dataset, make_world

RESULTS = ROOT / "data" / "results" / "sampling_bias.csv"
METHODS = ("vanilla", "bayes")

# -- the table: Bayes' rule changes nothing -----------------------------------------------------------------------


def posterior_from_counts(counts: np.ndarray) -> np.ndarray:
    """Maximum likelihood p(a|s,R=1) read directly from a table. counts: [S, A, 2] of n(s,a,R); returns [S, A]."""
    rare = _rare_counts(counts)
    return rare / rare.sum(axis=1, keepdims=True)


def bayes_from_counts(counts: np.ndarray) -> np.ndarray:
    """The same posterior as p(a|s) p(R=1|s,a) / p(R=1|s), each factor by maximum likelihood. [S, A, 2] -> [S, A]."""
    rare, taken = _rare_counts(counts), counts.sum(axis=2)
    prior = taken / taken.sum(axis=1, keepdims=True)
    likelihood = rare / np.maximum(taken, 1)  # an action never taken has prior 0, so its likelihood does not matter
    return prior * likelihood / (prior * likelihood).sum(axis=1, keepdims=True)


def _rare_counts(counts: np.ndarray) -> np.ndarray:
    if counts.ndim != 3 or counts.shape[2] != 2:
        raise ValueError(f"counts must have shape [states, actions, 2], got {list(counts.shape)}")
    if (counts[:, :, 1].sum(axis=1) == 0).any():
        raise ValueError("a state without any R=1 sample has no empirical p(a|s,R=1); leave that state out")
    return counts[:, :, 1]


# -- two ways to learn the answer, with the same budget -----------------------------------------------------------

Weights = list[Tensor]  # weight [D, in, out] and bias [D, 1, out] of each of three layers
Model = dict[str, Weights]


def new_model(method: str, config: SamplingBias, g: torch.Generator) -> Model:
    """D fresh models. The two networks of `bayes` are narrower, so that both methods have equally many weights."""
    dims = config.state_dims
    if method == "vanilla":
        return {"policy": _new_network(config, dims + 1, config.hidden, g)}
    if method == "bayes":
        target = _weight_count(dims + 1, config.hidden)
        narrow = min(
            range(1, config.hidden + 1),
            key=lambda h: abs(_weight_count(dims, h) + _weight_count(dims + 1, h) - target),
        )
        return {"prior": _new_network(config, dims, narrow, g), "reward": _new_network(config, dims + 1, narrow, g)}
    raise ValueError(f"unknown method '{method}'{did_you_mean(method, METHODS)}")


def _weight_count(inputs: int, hidden: int) -> int:
    return (inputs + 1) * hidden + (hidden + 1) * hidden + hidden + 1


def _new_network(config: SamplingBias, inputs: int, hidden: int, g: torch.Generator) -> Weights:
    weights = []
    for n_in, n_out, scale in ((inputs, hidden, 2.0), (hidden, hidden, 2.0), (hidden, 1, 0.01)):
        matrix = torch.randn(config.datasets, n_in, n_out, generator=g, device=g.device) * math.sqrt(scale / n_in)
        weights += [matrix, torch.zeros(config.datasets, 1, n_out, device=g.device)]
    return [weight.requires_grad_() for weight in weights]


def _logit(weights: Weights, states: Tensor, extra: Tensor | None = None) -> Tensor:
    """D networks on D batches. states: [D, n, dims], extra input: [D, n]; returns [D, n]."""
    x = states if extra is None else torch.cat([states, extra[..., None]], -1)
    for matrix, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = torch.relu(torch.baddbmm(bias, x, matrix))
    return torch.baddbmm(weights[-1], x, weights[-2])[..., 0]


def negative_log_likelihood(model: Model, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
    """-log p(a|s,R) for vanilla, -log p(a|s) - log p(R|s,a) for bayes. [D, n, dims], [D, n], [D, n] -> [D, n].

    Differs from the paper: its discrete model is one softmax over (a, R) with an extra weight on the return term,
    because two plain likelihoods are the shortest form of the idea in Figure 1.
    """
    if "policy" in model:
        return softplus(-actions * _logit(model["policy"], states, returns))
    prior = softplus(-actions * _logit(model["prior"], states))
    return prior + softplus(-returns * _logit(model["reward"], states, actions))


@torch.no_grad()
def estimated_posterior(model: Model, states: Tensor, habit: Tensor | None = None) -> Tensor:
    """The model's p(up|s,R=1), for `bayes` with a known policy's log-odds [D, n] if given. [D, n, dims] -> [D, n]."""
    one = torch.ones_like(states[..., 0])
    if "policy" in model:
        return torch.sigmoid(_logit(model["policy"], states, one))
    up, down = (logsigmoid(_logit(model["reward"], states, sign * one)) for sign in (1, -1))
    return torch.sigmoid((_logit(model["prior"], states) if habit is None else habit) + up - down)


@torch.no_grad()
def cloned_prior(model: Model, states: Tensor) -> Tensor:
    """p(up|s) of the `bayes` model: what plain cloning, which ignores R, would answer. [D, n, dims] -> [D, n]."""
    return torch.sigmoid(_logit(model["prior"], states))


def fit(method: str, data: Dataset, config: SamplingBias, g: torch.Generator) -> Model:
    """Adam on minibatches; every fifth sample is held out, and each dataset keeps its best held-out checkpoint."""
    model = new_model(method, config, g)
    weights = [weight for network in model.values() for weight in network]
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)
    kept = [weight.detach().clone() for weight in weights]
    best = torch.full((config.datasets,), math.inf, device=g.device)
    position = torch.arange(config.samples, device=g.device)
    held_out, training = position[4::5], position[position % 5 != 4]
    rare, common = training[training < data.rare_samples], training[training >= data.rare_samples]
    rare_share = 0.5 if config.balanced else len(rare) / len(training)
    weight_of_rare = len(common) / len(rare) if config.balanced else 1.0
    importance = torch.where(held_out < data.rare_samples, weight_of_rare, 1.0)  # [held out]
    row = torch.arange(config.datasets, device=g.device)[:, None]

    def loss(index: Tensor) -> Tensor:  # [D, n] or [n] of sample numbers -> [D, n]
        parts = (data.states[row, index], data.actions[row, index], data.returns[row, index])
        return negative_log_likelihood(model, *parts)

    def draw_batch() -> Tensor:  # [D, batch]: every dataset draws its own, or their errors would share its luck
        shape = (config.datasets, config.batch)
        kind = torch.rand(shape, generator=g, device=g.device) < rare_share
        first, second = (p[torch.randint(len(p), shape, generator=g, device=g.device)] for p in (rare, common))
        return torch.where(kind, first, second)

    for step in range(config.steps + 1):
        if step == config.steps or (config.early_stopping and step % 20 == 0):
            with torch.no_grad():
                score = (loss(held_out) * importance).mean(1)  # [D]
                better = score < best if config.early_stopping else torch.ones_like(score, dtype=torch.bool)
                best = torch.where(better, score, best)
                for old, new in zip(kept, weights, strict=True):
                    old[better] = new[better]
        optimizer.zero_grad()
        loss(draw_batch()).mean(1).sum().backward()  # a sum over datasets: each one's gradient is its own
        optimizer.step()
    iterator = iter(kept)
    return {name: [next(iterator) for _ in network] for name, network in model.items()}


# -- the sweep ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingBias:
    """One experiment: the size of the worlds and datasets, and the training that both methods share."""

    datasets: int = 100
    """Datasets per point, each from its own random world."""
    samples: int = 5000
    """Samples per dataset, rare ones included."""
    state_dims: int = 4
    """Features per state, each standard normal."""
    gap: float = 2.0
    """How much the reward prefers `up`, in log-odds of an action being good (scenario `simple_reward`)."""
    roughness: float = 1.5
    """Frequency of the random waves: how quickly the complicated functions change from state to state."""
    hidden: int = 24
    """Width of the vanilla network's two hidden layers; Bayes' two networks are narrowed to the same weight count."""
    steps: int = 400
    """Optimiser steps, for both methods."""
    batch: int = 64
    """Samples per step."""
    learning_rate: float = 5e-3
    """AdamW's step size."""
    weight_decay: float = 1e-2
    """AdamW's weight decay."""
    early_stopping: bool = True
    """Keep the checkpoint with the best held-out likelihood, else the last one."""
    balanced: bool = False
    """Draw R=1 as often as R=0 during training; this leaves p(a|s,R=1) as it is, for both methods."""
    test_states: int = 300
    """Fresh states on which the error is averaged."""
    rare_samples: tuple[int, ...] = (1, 3, 10, 30, 100, 300, 1000)
    """Numbers of R=1 samples to try."""
    gaps: tuple[float, ...] = (0.0, 1.0, 4.0)
    """Further gaps to try at 30 rare samples."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"datasets": 4, "samples": 400, "steps": 40, "rare_samples": (3, 30), "gaps": (0.0,)},
        "paper": {"datasets": 500, "steps": 1200, "hidden": 64},
    }


PROTOCOLS = ("standard", "long training", "R=1 oversampled", "oversampled, last checkpoint")


def with_protocol(config: SamplingBias, protocol: str) -> SamplingBias:
    """Other ways to train, the same for both methods, to see whether the verdict depends on ours."""
    if protocol == "standard":
        return config
    if protocol == "long training":
        return replace(config, steps=3 * config.steps, early_stopping=False)
    if protocol == "R=1 oversampled":
        return replace(config, balanced=True)
    if protocol == "oversampled, last checkpoint":
        return replace(config, balanced=True, early_stopping=False)
    raise ValueError(f"unknown protocol '{protocol}'{did_you_mean(protocol, PROTOCOLS)}")


def errors(scenario: str, rare_samples: int, config: SamplingBias, seed: int = 0) -> dict[str, np.ndarray]:
    """Mean total variation to the exact p(a|s,R=1) over test states, one number per dataset: method -> [D]."""
    g = generator(seed)
    world = make_world(scenario, config.datasets, config.state_dims, config.gap, config.roughness, g)
    states = torch.randn(config.datasets, config.test_states, config.state_dims, generator=g)
    data = draw_dataset(world, config.datasets, config.samples, rare_samples, g)
    truth = world.posterior(states)

    def distance(estimate: Tensor) -> np.ndarray:
        return (estimate - truth).abs().mean(1).numpy()  # with two actions |p - q| is the total variation

    vanilla, bayes = (fit(method, data, config, g) for method in METHODS)
    return {
        "vanilla": distance(estimated_posterior(vanilla, states)),
        "bayes": distance(estimated_posterior(bayes, states)),
        "cloning": distance(cloned_prior(bayes, states)),
    }


def fitted_curves(rare_samples: int, gap: float, config: SamplingBias, seed: int = 0) -> dict[str, np.ndarray]:
    """One `simple_reward` world learned from D datasets, to look at: a walk along the first state feature.

    Returns `walk` [n], the `exact` p(up|s,R=1) [n] there, and each method's estimates [D, n].
    """
    g = generator(seed)
    world = make_world("simple_reward", 1, config.state_dims, gap, config.roughness, g)
    data = draw_dataset(world, config.datasets, config.samples, rare_samples, g)
    states = torch.zeros(config.datasets, 81, config.state_dims)
    states[..., 0] = torch.linspace(-2, 2, 81)  # the other features stay at their mean
    curves = {method: estimated_posterior(fit(method, data, config, g), states).numpy() for method in METHODS}
    return curves | {"walk": states[0, :, 0].numpy(), "exact": world.posterior(states)[0].numpy()}


def run_sweep(config: SamplingBias, preset: str) -> pd.DataFrame:
    """Every point of the notebook's figures; one row per dataset, because the methods are paired on it."""
    middle = sorted(config.rare_samples)[len(config.rare_samples) // 2]
    cells = [(scenario, count, config.gap, "standard") for scenario in SCENARIOS for count in config.rare_samples]
    cells += [("simple_reward", middle, gap, "standard") for gap in config.gaps]
    cells += [(scenario, middle, config.gap, name) for scenario in SCENARIOS for name in PROTOCOLS[1:]]
    rows = []
    for scenario, count, gap, protocol in track(cells, desc="sampling bias"):
        result = errors(scenario, count, with_protocol(replace(config, gap=gap), protocol))
        for dataset in range(config.datasets):
            row: dict[str, Any] = {"scenario": scenario, "protocol": protocol, "gap": gap, "rare_samples": count}
            row |= {"seed": dataset} | {name: round(float(value[dataset]), 4) for name, value in result.items()}
            rows.append(row | {"preset": preset, "revision": git_revision()})
    return pd.DataFrame(rows)


def record(path: Path = RESULTS) -> None:
    """Recompute the recorded results (preset `laptop`) and write them."""
    write_csv(path, run_sweep(SamplingBias(), "laptop").to_dict("records"))  # type: ignore[arg-type]


def bootstrap_means(values: np.ndarray, rng: np.random.Generator, draws: int = 1000) -> tuple[float, float, float]:
    """Mean of `values` [D] with its 95% bootstrap interval over datasets: (mean, low, high)."""
    resampled = values[rng.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def summarise(table: pd.DataFrame, by: Sequence[str], rng: np.random.Generator) -> pd.DataFrame:
    """Mean error and 95% band per group and method, and `gain`: vanilla's error minus Bayes', paired by dataset."""
    rows = []
    for key, group in table.groupby(list(by), sort=False):
        columns = {name: group[name].to_numpy() for name in ("vanilla", "bayes", "cloning")}
        columns["gain"] = columns["vanilla"] - columns["bayes"]
        for method, values in columns.items():
            mean, low, high = bootstrap_means(values, rng)
            place = dict(zip(by, key, strict=True))
            rows.append(place | {"method": method, "mean": mean, "low": low, "high": high})
    return pd.DataFrame(rows)
