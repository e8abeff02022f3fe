"""What has a trained model learned? Its losses and forecasts on held-out steps, the shape of its prior, its results.

Also finds the models that ship in data/models, or trains what is missing.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.build import TrainConfig, compute_loss, split
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.losses import Batch
from brrcrl_lib.models import BayesianModel
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.experiments.results import model_name
from brrcrl_lib.train import Run, fit, load_run
from brrcrl_lib.worlds import DatasetName

MODELS = Path(os.environ.get("BRRCRL_MODELS") or ROOT / "data" / "models")

# -- models ------------------------------------------------------------------------------------------------------


def available_models(folder: Path = MODELS) -> list[str]:
    """Names of the datasets whose models ship with both objectives."""
    names = [path.name.removesuffix("-authors.safetensors") for path in sorted(folder.glob("*-authors.safetensors"))]
    return [name for name in names if (folder / f"{name}-paper.safetensors").exists()]


def shipped_model(dataset: str, objective: str, folder: Path = MODELS) -> tuple[Run, pd.DataFrame]:
    """The model that ships for a dataset (its id, or its name here), on the CPU, and the metrics of its training."""
    path = folder / f"{model_name(dataset)}-{objective}.safetensors"
    if not path.exists():
        raise FileNotFoundError(
            f"no model ships for {dataset} with objective {objective} "
            f"(there are: {', '.join(available_models(folder)) or 'none'}); run with preset=laptop to train it"
        )
    metrics = path.with_name(f"{path.stem}-metrics.csv")
    return load_run(path, "cpu"), pd.read_csv(metrics) if metrics.exists() else pd.DataFrame()


def train_model(
    dataset: OfflineDataset, preset: str, device: str, out: Path | None, **settings: Any
) -> tuple[Run, pd.DataFrame]:
    """Train on `device` (a finished or interrupted run in `out` is continued); the model comes back on the CPU."""
    run = fit(with_preset(TrainConfig, preset, device=device, **settings), dataset, out, resume=True, preset=preset)
    run.model.cpu().eval()
    return run, pd.DataFrame(run.metrics)


def load_or_train(dataset: OfflineDataset, preset: str, objective: str = "authors", device: str = "auto") -> Run:
    """The model that a notebook plays live: the shipped one, or one trained here and now at the preset's size."""
    if preset == "recorded":
        return shipped_model(dataset.id, objective)[0]
    out = None if preset == "smoke" else ROOT / "runs" / "notebooks" / f"{preset}-{model_name(dataset.id)}-{objective}"
    return train_model(dataset, preset, device, out, objective=objective)[0]


def describe(run: Run) -> str:
    """How the model was trained, in one line."""
    size = f"{run.about['step']:,} steps of {run.config.batch_size} transitions"
    negatives = f", {run.config.negatives} negatives" if run.config.method == "bayesian" else ""
    return f"{size}{negatives}, seed {run.config.seed}"


# -- held-out steps ----------------------------------------------------------------------------------------------


def spread_out(dataset: OfflineDataset, count: int) -> Tensor:
    """Up to `count` steps, evenly spaced through the dataset, [n]."""
    return torch.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().long()


def take(dataset: OfflineDataset, steps: Tensor) -> Batch:
    return Batch(dataset.observations[steps], dataset.actions[steps], dataset.rtg[steps])


@torch.no_grad()
def losses_on(run: Run, dataset: OfflineDataset, count: int = 1000, seed: int = 0) -> dict[str, float]:
    """Every part of the training loss on up to `count` steps of `dataset`."""
    parts = compute_loss(run.config, run.model, take(dataset, spread_out(dataset, count)), generator(seed))
    return {name: float(value) for name, value in parts.items()}


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
    batch = take(dataset, steps)
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


def held_out_summary(run: Run, dataset: OfflineDataset) -> dict[str, float]:
    """What p(R|s,a) and p(R|s) know of the return, on episodes they never saw."""
    assert isinstance(run.model, BayesianModel)
    train, test = split(run.config, dataset)
    losses = losses_on(run, test)
    return {
        "knows nothing": marginal_nll(run.model.buckets, train, test),
        "p(R|s)": losses["value_nll"],
        "p(R|s,a)": losses["return_nll"],
        "80% interval holds": forecast(run.model, test).coverage(0.8),
    }


# -- the prior ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def prior_shape(model: Any, dataset: OfflineDataset, count: int = 4000) -> tuple[Tensor, Tensor]:
    """Standard deviations [n, m] of p(a|s) (of its first component), and |mode - recorded action| [n, m]."""
    batch = take(dataset, spread_out(dataset, count))
    prior = model.prior(model.standardise(batch.observations))
    return prior.log_std[:, 0].exp(), (prior.mode() - batch.actions).abs()


def contrast_widening(std: float, dimensions: int, uniform_share: float = 0.5) -> float:
    """How much wider than the data the authors' contrast wants the prior, for Gaussian data with this `std`.

    With negatives from q = (1 - u) f + u U, InfoNCE is best served by f = c p / q, where p is the data's density, f
    the prior's and U the uniform one on [-1, 1]^m: a quadratic equation in f, whose c makes f integrate to 1.
    Solved along the radius; the box's walls and the Gaussian form of f are left aside.
    """
    if not 0 <= uniform_share < 1:
        raise ValueError(f"uniform_share must lie in [0, 1) here; got {uniform_share}")
    radius = np.linspace(0, 14 * std, 8001)[1:]
    log_p = -0.5 * (radius / std) ** 2 - dimensions * math.log(std * math.sqrt(2 * math.pi))
    log_sphere = math.log(2) + dimensions / 2 * math.log(math.pi) - math.lgamma(dimensions / 2)
    shell = np.exp(log_sphere + (dimensions - 1) * np.log(radius)) * (radius[1] - radius[0])
    a, b = 1 - uniform_share, uniform_share * 2.0**-dimensions
    low, high = -100.0, 100.0
    for _ in range(80):  # bisection for log c
        middle = (low + high) / 2
        cp = np.exp(middle + log_p)
        f = 2 * cp / (b + np.sqrt(b * b + 4 * a * cp))  # the positive root, written to avoid cancellation
        low, high = (middle, high) if (f * shell).sum() < 1 else (low, middle)
    return float(np.sqrt((f * shell * radius**2).sum() / (f * shell).sum() / dimensions) / std)


# -- results -----------------------------------------------------------------------------------------------------

POLICIES = ("cloning", "paper, mode", "paper", "authors, mode", "authors")
"""Trained by plain cloning; each objective's prior alone (its mode); each objective with adaptive inference."""


def label_results(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of a results file with a column `policy`, sorted by dataset, in the order of POLICIES, by seed."""
    mode = np.where(results["clone"].astype(bool), ", mode", "")
    policy = np.where(results["method"] == "cloning", "cloning", results["objective"] + mode)
    order = pd.Series(policy, index=results.index).map(POLICIES.index)
    labelled = results.assign(policy=policy, order=order).sort_values(["dataset", "order", "train_seed"])
    return labelled.drop(columns="order")


def against_cloning(results: pd.DataFrame, policy: str) -> str:
    """What `policy` earns on each dataset in multiples of cloning, or, where cloning earns nothing, both returns."""
    phrases = []
    for dataset, rows in results.groupby("dataset", sort=False):
        mean = rows.groupby("policy")["return_mean"].mean()
        if policy in mean and "cloning" in mean:
            ours, theirs, name = mean[policy], mean["cloning"], DatasetName.parse(str(dataset)).world_name
            phrases.append(
                f"{name} {ours / theirs:.1f} times" if theirs > 1 else f"{name} {ours:.0f} against {theirs:.0f}"
            )
    return ", ".join(phrases) or "nothing to compare yet"
