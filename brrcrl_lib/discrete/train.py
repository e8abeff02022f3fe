"""Fit a model with discrete actions: `fit_discrete(config, data, out)`.

The loop itself, with its run directory and exact resume, is in loop.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from brrcrl_lib.base.devices import pick_device
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError, checkpoint_file
from brrcrl_lib.discrete.build import DiscreteConfig, make_discrete_buckets, make_discrete_model
from brrcrl_lib.discrete.data import DiscreteBatch, DiscreteData
from brrcrl_lib.discrete.encoders import VectorEncoder
from brrcrl_lib.discrete.losses import cloning_loss, distributional_td_loss, monte_carlo_loss, vanilla_loss
from brrcrl_lib.discrete.models import DiscreteCloning, DiscreteModel, DiscreteVanilla, JointReturnModel
from brrcrl_lib.loop import Loop, read_metrics
from brrcrl_lib.returns import ReturnBuckets


@dataclass(frozen=True)
class DiscreteRun:
    """A trained model, and how it got there."""

    model: DiscreteModel
    config: DiscreteConfig
    about: dict[str, Any]
    """Dataset, environment, versions, steps, seconds."""
    metrics: list[dict[str, float]] = field(default_factory=list, repr=False)


# -- fitting -----------------------------------------------------------------------------------------------------


def fit_discrete(
    config: DiscreteConfig,
    data: DiscreteData,
    out: Path | None = None,
    *,
    resume: bool = False,
    preset: str = "laptop",
) -> DiscreteRun:
    """Train on `data`; write the run to `out` if given. `resume` continues from out/checkpoint.safetensors."""
    trainer = _Trainer(config, data, pick_device(config.device), out, preset)
    trainer.begin(resume)
    trainer.train()
    return DiscreteRun(trainer.model, config, trainer.about(), trainer.metrics)


class _Trainer(Loop):
    """Steps of `discrete_step` on batches that the data hands out; indices are drawn on the CPU, where frames lie."""

    def __init__(
        self, config: DiscreteConfig, data: DiscreteData, device: torch.device, out: Path | None, preset: str
    ) -> None:
        self.data = data
        modules = initial_modules(config, data)
        super().__init__(config, data.id, modules, device, torch.device("cpu"), out, preset)
        self.loss = torch.compile(discrete_loss) if config.compile else discrete_loss

    @property
    def model(self) -> DiscreteModel:
        return cast(DiscreteModel, self.modules["model"])

    def advance(self) -> tuple[dict[str, Tensor], Tensor]:
        if "target" in self.modules and self.step % self.config.target_every == 0:
            self.modules["target"].load_state_dict(self.model.state_dict())
        batch = self.data.sample(self.config.batch_size, self.generator).to(self.device)
        parts = discrete_step(self.config, self.modules, self.optimizer, batch, self.data.discount, self.loss)
        return parts, batch.indices

    def restore(self, checkpoint: Checkpoint) -> None:
        super().restore(checkpoint)
        before, now = checkpoint.about.get("fingerprint"), self.data.fingerprint
        if before != now:
            raise CheckpointError(
                f"{self.data.id} holds other data than this run was trained on (fingerprint {before} before, {now} "
                "now); choose another --out"
            )

    def describe(self) -> dict[str, Any]:
        data, buckets = self.data, getattr(self.model, "buckets", None)
        return {
            "kind": "discrete",
            "fingerprint": data.fingerprint,
            "env": data.env_id,
            "play": data.play,
            "discount": data.discount,
            "reward_clip": data.reward_clip,
            "max_return": float(data.rtg.max()),
            "return_quantiles": np.quantile(data.rtg.numpy(), np.linspace(0, 1, 101)).round(4).tolist(),
            "observation_shape": list(data.observation_shape),
            "action_count": data.action_count,
            "buckets": [buckets.low, buckets.high, buckets.count, buckets.scheme] if buckets else None,
            "outside_buckets": str(buckets.count_outside(data.rtg)) if buckets else None,
        }


def initial_modules(config: DiscreteConfig, data: DiscreteData) -> dict[str, nn.Module]:
    """The model, and for distributional_td its slow copy (`target`) and the clone of the data's policy (`behaviour`).

    Weights come from the seed alone; torch's layers draw from the global generator, which is put back after.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        buckets = make_discrete_buckets(config, data)
        shape, count = data.observation_shape, data.action_count
        modules: dict[str, nn.Module] = {"model": make_discrete_model(config, shape, count, buckets)}
        if config.bootstraps and config.next_policy == "cloned":
            modules["behaviour"] = make_discrete_model(replace(config, method="cloning"), shape, count, buckets)
    statistics = data.standardisation()
    for module in modules.values():
        encoder = cast(DiscreteModel, module).encoder
        if isinstance(encoder, VectorEncoder) or config.standardise_frames:
            encoder.standardise.load_state_dict({"mean": statistics[0], "std": statistics[1]})
    if config.bootstraps:
        modules["target"] = deepcopy(modules["model"]).requires_grad_(False)
    return modules


def discrete_loss(
    config: DiscreteConfig, modules: Mapping[str, nn.Module], batch: DiscreteBatch, discount: float
) -> dict[str, Tensor]:
    """The loss of one batch, and the parts it is made of. Free of host synchronisation and of randomness."""
    model = modules["model"]
    if isinstance(model, DiscreteVanilla):
        return vanilla_loss(model, batch)
    if isinstance(model, DiscreteCloning):
        return cloning_loss(model, batch)
    assert isinstance(model, JointReturnModel)
    if config.learner == "monte_carlo":
        return monte_carlo_loss(model, batch, config.return_weight, config.penalty)
    target = cast(JointReturnModel, modules["target"])
    behaviour = cast(DiscreteCloning | None, modules.get("behaviour"))
    return distributional_td_loss(model, target, behaviour, batch, discount, config.return_weight, config.penalty)


def discrete_step(
    config: DiscreteConfig,
    modules: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    batch: DiscreteBatch,
    discount: float,
    loss: Any = discrete_loss,
) -> dict[str, Tensor]:
    """One gradient step on `batch`; returns the detached parts of the loss, on the device."""
    device = batch.actions.device
    with torch.autocast(device.type, torch.bfloat16) if config.mixed_precision else nullcontext():
        parts = loss(config, modules, batch, discount)
    optimizer.zero_grad(set_to_none=True)
    parts["loss"].backward()
    optimizer.step()
    return {name: value.detach() for name, value in parts.items()}


# -- loading -----------------------------------------------------------------------------------------------------


def load_discrete_run(path: Path, device: str = "auto") -> DiscreteRun:
    """A trained model from a run directory or a checkpoint file."""
    file = checkpoint_file(path)
    checkpoint = Checkpoint.load(file)
    about = dict(checkpoint.about)
    if about.get("kind") != "discrete":
        raise CheckpointError(f"{file} holds a model of continuous actions; load_run reads it")
    try:
        stored = about.pop("config")
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()
        }
        config = DiscreteConfig(**settings)
        buckets = ReturnBuckets(*about["buckets"]) if about["buckets"] else ReturnBuckets(0.0, 1.0, 2)
        model = make_discrete_model(config, about["observation_shape"], about["action_count"], buckets)
        model.load_state_dict({name: value.float() for name, value in checkpoint.section("model").items()})
    except (KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{file} does not fit this version of the kit ({error}); train it again") from None
    metrics = list(read_metrics(path)) if path.is_dir() else []
    return DiscreteRun(model.to(pick_device(device)).eval(), config, about, metrics)
