"""Fit a model to an offline dataset: `fit(config, dataset, out)`.

The loop itself, with its run directory and exact resume, is in loop.py.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.base.devices import pick_device
from brrcrl_lib.build import Model, TrainConfig, compute_loss, make_buckets, make_model, split
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError, checkpoint_file
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.loop import Loop, read_metrics
from brrcrl_lib.losses import Batch
from brrcrl_lib.returns import ReturnBuckets


@dataclass(frozen=True)
class Run:
    """A trained model, and how it got there."""

    model: Model
    config: TrainConfig
    about: dict[str, Any]
    """Dataset, environment, versions, steps, seconds."""
    metrics: list[dict[str, float]] = field(default_factory=list, repr=False)


# -- fitting -----------------------------------------------------------------------------------------------------


def fit(
    config: TrainConfig,
    dataset: OfflineDataset,
    out: Path | None = None,
    *,
    resume: bool = False,
    preset: str = "laptop",
) -> Run:
    """Train on `dataset`; write the run to `out` if given. `resume` continues from out/checkpoint.safetensors."""
    if dataset.actions.ndim != 2:
        raise ValueError(f"{dataset.id} has discrete actions; this model needs a box of continuous ones")
    trainer = _Trainer(config, split(config, dataset)[0], pick_device(config.device), out, preset)
    trainer.begin(resume)
    trainer.train()
    return Run(trainer.model, config, trainer.about(), trainer.metrics)


class _Trainer(Loop):
    """Steps of `training_step` on a dataset that lies on the device."""

    def __init__(
        self, config: TrainConfig, dataset: OfflineDataset, device: torch.device, out: Path | None, preset: str
    ) -> None:
        self.model = _initial_model(config, dataset)
        super().__init__(config, dataset.id, {"model": self.model}, device, device, out, preset)
        self.dataset, self.data = dataset, dataset.to(device)
        self.loss = torch.compile(compute_loss) if config.compile else compute_loss

    def advance(self) -> tuple[dict[str, Tensor], Tensor]:
        indices = self.data.sample(self.config.batch_size, self.generator)
        parts = training_step(self.config, self.model, self.optimizer, self.data, indices, self.generator, self.loss)
        return parts, indices

    def describe(self) -> dict[str, Any]:
        buckets = getattr(self.model, "buckets", None)
        return {
            "env": self.dataset.env_spec.id if self.dataset.env_spec else None,
            "discount": self.dataset.discount,
            "max_return": float(self.dataset.rtg.max()),
            "return_quantiles": np.quantile(self.dataset.rtg.numpy(), np.linspace(0, 1, 101)).round(4).tolist(),
            "observation_size": self.dataset.observations.shape[1],
            "action_size": self.dataset.actions.shape[1],
            "buckets": [buckets.low, buckets.high, buckets.count, buckets.scheme] if buckets else None,
        }


def _initial_model(config: TrainConfig, data: OfflineDataset) -> Model:
    """Weights from the seed alone; torch's layers draw from the global generator, which is put back after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        buckets = make_buckets(config, data)
        model = make_model(config, data.observations.shape[1], data.action_low, data.action_high, buckets)
    mean, std = data.standardisation()
    model.standardise.load_state_dict({"mean": mean, "std": std})
    return model


def training_step(
    config: TrainConfig,
    model: Model,
    optimizer: torch.optim.Optimizer,
    data: OfflineDataset,
    indices: Tensor,
    generator: torch.Generator | None,
    loss: Any = compute_loss,
) -> dict[str, Tensor]:
    """One gradient step on the transitions `indices` [B]; returns the detached parts of the loss, on the device."""
    batch = Batch(data.observations[indices], data.actions[indices], data.rtg[indices])
    precision = torch.autocast(indices.device.type, torch.bfloat16) if config.mixed_precision else nullcontext()
    with precision:
        parts = loss(config, model, batch, generator)
    optimizer.zero_grad(set_to_none=True)
    parts["loss"].backward()
    optimizer.step()
    return {name: value.detach() for name, value in parts.items()}


# -- loading -----------------------------------------------------------------------------------------------------


def load_run(path: Path, device: str = "auto") -> Run:
    """A trained model from a run directory or a checkpoint file (as in data/models)."""
    file = checkpoint_file(path)
    checkpoint = Checkpoint.load(file)
    about = dict(checkpoint.about)
    if about.get("kind") == "discrete":
        raise CheckpointError(f"{file} holds a model of discrete actions; load_discrete_run reads it")
    try:
        stored = about.pop("config")
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
        }
        config = TrainConfig(**settings)
        buckets = ReturnBuckets(*about["buckets"]) if about["buckets"] else ReturnBuckets(0.0, 1.0, 2)
        weights = {name: value.float() for name, value in checkpoint.section("model").items()}
        prior = "policy" if config.method == "vanilla" else "prior"
        model = make_model(
            config, about["observation_size"], weights[f"{prior}.low"], weights[f"{prior}.high"], buckets
        )
        model.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{file} does not fit this version of the kit ({error}); train it again") from None
    metrics = list(read_metrics(path)) if path.is_dir() else []
    return Run(model.to(pick_device(device)).eval(), config, about, metrics)


def export_model(run: Path, target: Path) -> None:
    """Write the weights of a run alone, in half precision, for shipping: about a tenth of a checkpoint."""
    checkpoint = Checkpoint.load(run / "checkpoint.safetensors")
    tensors = {
        name: value.half() if value.numel() > 64 else value
        for name, value in checkpoint.tensors.items()
        if name.startswith("model/")
    }
    Checkpoint(tensors, checkpoint.about | {"weights": "float16"}).save(target)
