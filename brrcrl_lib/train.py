"""Fit a model to an offline dataset: `fit(config, dataset, out)`.

A run directory holds config.json, metrics.csv and checkpoint.safetensors (weights, optimiser, step, generator).
Kill it at any moment; with `resume` it ends with the same weights, bit for bit, as if nothing had happened.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.build import Model, TrainConfig, compute_loss, make_buckets, make_model, split
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError, config_dict, optimizer_tensors, restore_optimizer
from brrcrl_lib.datasets.offline import OfflineDataset
from brrcrl_lib.devices import generator, pick_device, track
from brrcrl_lib.losses import Batch
from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.runs import git_revision, versions, write_csv, write_json


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
    device = pick_device(config.device)
    trainer = _Trainer(config, split(config, dataset)[0], device, out, preset)
    if out is not None:
        path = out / "checkpoint.safetensors"
        if path.exists() and not resume:
            raise FileExistsError(f"{out} already holds a run; pass --resume to continue it, or choose another --out")
        if path.exists():
            trainer.restore(Checkpoint.load(path))
        write_json(out / "config.json", {"config": config_dict(config), **trainer.about()})
    trainer.train()
    return Run(trainer.model, config, trainer.about(), trainer.metrics)


class _Trainer:
    """The loop, and what it needs to stop and start again."""

    def __init__(
        self, config: TrainConfig, dataset: OfflineDataset, device: torch.device, out: Path | None, preset: str
    ) -> None:
        self.config, self.dataset, self.device, self.out, self.preset = config, dataset, device, out, preset
        self.generator = generator(config.seed, device)
        self.model = self._initial_model().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.learning_rate, fused=True)
        self.data = dataset.to(device)
        self.step, self.seconds = 0, 0.0
        self.metrics: list[dict[str, float]] = []
        self.loss = torch.compile(compute_loss) if config.compile else compute_loss

    def _initial_model(self) -> Model:
        """Weights from the seed alone; torch's layers draw from the global generator, which is put back after."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            buckets = make_buckets(self.config, self.dataset)
            data = self.dataset
            model = make_model(self.config, data.observations.shape[1], data.action_low, data.action_high, buckets)
        mean, std = data.standardisation()
        model.standardise.load_state_dict({"mean": mean, "std": std})
        return model

    def about(self) -> dict[str, Any]:
        buckets = getattr(self.model, "buckets", None)
        return {
            "dataset": self.dataset.id,
            "env": self.dataset.env_spec.id if self.dataset.env_spec else None,
            "discount": self.dataset.discount,
            "max_return": float(self.dataset.rtg.max()),
            "return_quantiles": np.quantile(self.dataset.rtg.numpy(), np.linspace(0, 1, 101)).round(4).tolist(),
            "observation_size": self.dataset.observations.shape[1],
            "action_size": self.dataset.actions.shape[1],
            "buckets": [buckets.low, buckets.high, buckets.count, buckets.scheme] if buckets else None,
            "step": self.step,
            "seconds": round(self.seconds, 1),
            "preset": self.preset,
            "device": str(self.device),
            "versions": versions(),
            "revision": git_revision(),
        }

    def train(self) -> None:
        bar = track(
            total=self.config.steps, initial=self.step, desc=f"{self.config.method} {self.dataset.id}", unit="step"
        )
        while self.step < self.config.steps:
            started = time.perf_counter()
            boundary = min(
                self._next(self.config.log_every), self._next(self.config.checkpoint_every), self.config.steps
            )
            parts, indices = self._run_until(boundary, bar)
            self.seconds += time.perf_counter() - started
            self._record(parts, indices)
            bar.set_postfix({name: round(value, 3) for name, value in self.metrics[-1].items() if name != "step"})
            if self.out is not None and (
                self.step % self.config.checkpoint_every == 0 or self.step == self.config.steps
            ):
                self.save()
        bar.close()

    def _next(self, every: int) -> int:
        return (self.step // every + 1) * every

    def _run_until(self, boundary: int, bar: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Steps up to `boundary`; the losses [steps] and the transitions used [steps, B], on the device."""
        history: list[dict[str, Tensor]] = []
        used: list[Tensor] = []
        while self.step < boundary:
            indices = self.data.sample(self.config.batch_size, self.generator)
            history.append(
                training_step(self.config, self.model, self.optimizer, self.data, indices, self.generator, self.loss)
            )
            used.append(indices)
            self.step += 1
            bar.update()
        return {name: torch.stack([entry[name] for entry in history]) for name in history[0]}, torch.stack(used)

    def _record(self, parts: dict[str, Tensor], indices: Tensor) -> None:
        """One row of metrics; a loss that is not finite ends the run before it can spoil a checkpoint."""
        broken = (~torch.isfinite(parts["loss"])).nonzero()
        if len(broken):
            first = int(broken[0])
            step = self.step - len(parts["loss"]) + first + 1
            batch = indices[first][:5].tolist()
            kept = (
                f"the last good checkpoint is {self.out / 'checkpoint.safetensors'}"
                if self.out
                else "nothing was saved"
            )
            if self.out is not None and not (self.out / "checkpoint.safetensors").exists():
                kept = "no checkpoint had been written yet"
            raise FloatingPointError(
                f"the loss became {float(parts['loss'][first])} at step {step} (batch of transitions {batch} ...); "
                f"{kept}. Try a lower --learning-rate"
            )
        means = {name: float(values.float().mean()) for name, values in parts.items()}
        self.metrics.append({"step": self.step, **{name: round(value, 6) for name, value in means.items()}})

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self) -> None:
        assert self.out is not None
        write_csv(self.out / "metrics.csv", self.metrics)
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        about = {"config": config_dict(self.config), **self.about()}
        Checkpoint(tensors, about).save(self.out / "checkpoint.safetensors")

    def restore(self, checkpoint: Checkpoint) -> None:
        about = checkpoint.about
        ignored = {"steps", "device", "compile", "log_every", "checkpoint_every"}
        stored, wanted = about["config"], config_dict(self.config)
        changed = [f"{key}: {stored.get(key)} before, {wanted[key]} now" for key in wanted
                   if key not in ignored and stored.get(key) != wanted[key]]  # fmt: skip
        if about["dataset"] != self.dataset.id:
            changed.append(f"dataset: {about['dataset']} before, {self.dataset.id} now")
        if changed:
            raise CheckpointError(f"cannot resume with other settings ({'; '.join(changed)}); choose another --out")
        self.model.load_state_dict(checkpoint.section("model"))
        restore_optimizer(self.optimizer, checkpoint.section("optimizer"))
        self.generator.set_state(checkpoint.tensors["generator"])
        self.step, self.seconds = about["step"], about["seconds"]
        self.metrics = [row for row in _read_metrics(self.out) if row["step"] <= self.step]


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


def _read_metrics(out: Path | None) -> Iterator[dict[str, float]]:
    path = (out or Path()) / "metrics.csv"
    if path.exists():
        with path.open() as file:
            for row in csv.DictReader(file):
                yield {name: int(value) if name == "step" else float(value) for name, value in row.items()}


# -- loading -----------------------------------------------------------------------------------------------------


def load_run(path: Path, device: str = "auto") -> Run:
    """A trained model from a run directory or a checkpoint file (as in data/models)."""
    file = path / "checkpoint.safetensors" if path.is_dir() or path.suffix != ".safetensors" else path
    checkpoint = Checkpoint.load(file)
    about = dict(checkpoint.about)
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
    metrics = list(_read_metrics(path)) if path.is_dir() else []
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
