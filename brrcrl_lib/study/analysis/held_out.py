"""What has a trained model learned? Its losses and forecasts on steps that it never saw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.batch import Source
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.methods.br_rcrl import BayesianModel
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.training import Run, fixed_batches, mean_losses, split


def spread_out(dataset: OfflineDataset, count: int) -> Tensor:
    """Up to `count` steps, evenly spaced through the dataset, [n]."""
    return torch.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().long()


@torch.no_grad()
def losses_on(run: Run, dataset: OfflineDataset, count: int = 1000, seed: int = 0) -> dict[str, float]:
    """Every part of the training loss on up to `count` steps of `dataset`."""
    parts = run.method.loss(dataset.batch(spread_out(dataset, count)), generator(seed))
    return {name: float(value) for name, value in parts.items()}


def held_out_losses(run: Run, source: Source) -> dict[str, float] | None:
    """Every part of the training loss on the batches of kept-out episodes that `patience` would watch, of the weights
    that play; None where none were kept out."""
    if not run.config.held_out:
        return None
    held_out = split(run.config, source)[1].to(run.method.device)
    means = mean_losses(run.method, fixed_batches(run.config, held_out, run.method), held_out.device)
    return {name: round(value, 6) for name, value in means.items()}


def loss_table(runs: Mapping[str, Run], train: OfflineDataset, test: OfflineDataset) -> pd.DataFrame:
    """Parts of the loss on seen and held-out steps, two columns per model, beside the cost of knowing nothing.

    Knowing nothing: the true action blindly among N + 1; actions uniform in their box; returns by their frequency.
    """
    first = next(iter(runs.values()))
    returns = marginal_nll(first.model.buckets, train, test)
    nothing = {
        "contrast": math.log(first.config.negatives + 1),
        "prior_nll": float((train.action_high - train.action_low).log().sum()),
        "return_nll": returns,
        "value_nll": returns,
    }
    parts = {"train": train, "held out": test}
    losses = {f"{name}, {part}": losses_on(run, data) for name, run in runs.items() for part, data in parts.items()}
    return pd.DataFrame(losses).loc[list(nothing)].assign(**{"knows nothing": pd.Series(nothing)})


def marginal_nll(buckets: ReturnBuckets, train: OfflineDataset, test: OfflineDataset) -> float:
    """-log p(R) on `test` of a forecaster that knows how often each bucket occurs in `train`, and nothing else.

    With `test` = `train` it is the entropy of the return's marginal distribution (up to add-one smoothing).
    """
    counts = torch.bincount(buckets.encode(train.rtg), minlength=buckets.count).double() + 1
    return float(-(counts / counts.sum()).log()[buckets.encode(test.rtg)].mean())


@dataclass(frozen=True)
class Forecast:
    """p(R|s,a) on recorded steps, beside the R that followed."""

    probabilities: Tensor  # [n, buckets]
    actual: Tensor  # [n], reward-to-go
    episodes: Tensor  # [n]
    buckets: ReturnBuckets

    @property
    def predicted(self) -> Tensor:
        """E[R|s,a], [n]."""
        return self.probabilities @ self.buckets.decode(torch.arange(self.buckets.count))

    @property
    def pit(self) -> Tensor:
        """P(R <= what happened), [n]: uniform on [0, 1] if the forecast is right. Mass is spread evenly in a bucket."""
        label = self.buckets.encode(self.actual).unsqueeze(-1)
        edge = self.buckets.lower_edges()[label.squeeze(-1)]
        inside = ((self.actual - edge) / self.buckets.width).clamp(0, 1)
        mass = self.probabilities.gather(-1, label).squeeze(-1)
        return self.probabilities.cumsum(-1).gather(-1, label).squeeze(-1) - (1 - inside) * mass

    def coverage(self, level: float) -> float:
        """Share of the outcomes inside the central interval that should hold `level` of them."""
        return float(((self.pit - 0.5).abs() <= level / 2).float().mean())


@torch.no_grad()
def return_probabilities(model: BayesianModel, observations: Tensor, actions: Tensor) -> Tensor:
    """p(R|s,a) [n, buckets] of the actions [n, m] in the raw observations [n, k]."""
    encoded = model.returns.encode(model.standardise(observations))
    return model.returns.log_probs(encoded, actions.unsqueeze(1)).squeeze(1).exp()


def expected_return(model: BayesianModel, observations: Tensor, actions: Tensor) -> Tensor:
    """E[R|s,a], [n]."""
    centres = model.buckets.decode(torch.arange(model.buckets.count))
    return return_probabilities(model, observations, actions) @ centres


def forecast(model: BayesianModel, dataset: OfflineDataset, count: int = 4000) -> Forecast:
    """The model's forecasts on up to `count` steps of `dataset`."""
    steps = spread_out(dataset, count)
    batch = dataset.batch(steps)
    probabilities = return_probabilities(model, batch.observations, batch.actions)
    return Forecast(probabilities, batch.returns, dataset.episode_ids[steps], model.buckets)


def reliability(forecast: Forecast, rng: np.random.Generator, bins: int = 10, repetitions: int = 300) -> pd.DataFrame:
    """Mean prediction and mean outcome in `bins` bins of equally many steps, sorted by prediction.

    `low` and `high` bound 95% of the outcomes' means when whole episodes are drawn anew: the steps of one episode
    share its fate, so they are no independent witnesses.
    """
    predicted, actual = forecast.predicted.numpy(), forecast.actual.numpy()
    _, episode = np.unique(forecast.episodes.numpy(), return_inverse=True)
    count = episode.max() + 1
    weights = rng.multinomial(count, np.full(count, 1 / count), size=repetitions)[:, episode]  # [repetitions, n]
    rows = []
    for chosen in np.array_split(np.argsort(predicted, kind="stable"), bins):
        mass = weights[:, chosen]
        means = (mass @ actual[chosen]) / np.maximum(mass.sum(1), 1e-9)
        low, high = np.quantile(means[mass.sum(1) > 0], [0.025, 0.975])
        rows.append({"predicted": predicted[chosen].mean(), "actual": actual[chosen].mean(), "low": low, "high": high})
    return pd.DataFrame(rows)


def moved_by_inference(run: Run, dataset: OfflineDataset, delta: float, count: int = 100) -> tuple[float, float]:
    """How far the played action lies from the prior's mode, and how much more return the model promises for it.

    Means over up to `count` states of `dataset`, for adaptive targets at `delta`.
    """
    states, act = dataset.observations[spread_out(dataset, count)], run.method.Act
    usual, policy = run.policy(act(clone=True)).act(states), run.policy(act(delta=delta))
    moved = (policy.act(states) - usual).norm(dim=-1).mean()
    promised = policy.trace["predicted"] - expected_return(run.model, states, usual)
    return float(moved), float(promised.mean())


def held_out_summary(run: Run, dataset: OfflineDataset) -> dict[str, float]:
    """What p(R|s,a) and p(R|s) know of the return, on episodes they never saw."""
    train, test = split(run.config, dataset)
    losses, nothing = losses_on(run, test), marginal_nll(run.model.buckets, train, test)
    return {
        "knows nothing": nothing,
        "p(R|s)": losses["value_nll"],
        "p(R|s,a)": losses["return_nll"],
        "the state tells": nothing - losses["value_nll"],
        "the action adds": losses["value_nll"] - losses["return_nll"],
        "80% interval holds": forecast(run.model, test).coverage(0.8),
    }
