"""The training loop that every learner of the kit shares: steps, metrics, checkpoints, exact resume.

A run directory holds config.json, metrics.csv and checkpoint.safetensors (weights, optimiser, step, generator).
Kill it at any moment; with `resume` it ends with the same weights, bit for bit, as if nothing had happened.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from brrcrl_lib.base.devices import generator, track
from brrcrl_lib.base.files import git_revision, versions, write_csv, write_json
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError, config_dict, optimizer_tensors, restore_optimizer

MAY_CHANGE = {"steps", "device", "compile", "log_every", "checkpoint_every"}
"""Settings with which a run may be resumed differently: they do not change what a step does."""


class Loop:
    """The loop, and what it needs to stop and start again.

    A subclass says what one step is (`advance`) and what is on record (`describe`). `config` is a dataclass with
    method, seed, steps, learning_rate, log_every and checkpoint_every. Of `modules`, `model` comes first; all of
    them are kept in checkpoints, and those parameters that ask for gradients are trained.
    """

    def __init__(
        self,
        config: Any,
        dataset_id: str,
        modules: dict[str, nn.Module],
        device: torch.device,
        generator_device: torch.device,
        out: Path | None,
        preset: str,
    ) -> None:
        self.config, self.dataset_id, self.device, self.out, self.preset = config, dataset_id, device, out, preset
        self.modules = {name: module.to(device) for name, module in modules.items()}
        trained = [weight for module in self.modules.values() for weight in module.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=config.learning_rate, fused=True)
        self.generator = generator(config.seed, generator_device)
        self.step, self.seconds = 0, 0.0
        self.metrics: list[dict[str, float]] = []

    def advance(self) -> tuple[dict[str, Tensor], Tensor]:
        """One step: the detached parts of the loss, and which transitions were used [B], all on the device."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """What a reader of the checkpoint needs to know about the data and the model."""
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset_id,
            **self.describe(),
            "step": self.step,
            "seconds": round(self.seconds, 1),
            "preset": self.preset,
            "device": str(self.device),
            "versions": versions(),
            "revision": git_revision(),
        }

    # -- running -------------------------------------------------------------------------------------------------

    def begin(self, resume: bool) -> None:
        """Take up the run in `out`, if there is one and it was asked for; then write config.json."""
        if self.out is None:
            return
        path = self.out / "checkpoint.safetensors"
        if path.exists() and not resume:
            raise FileExistsError(
                f"{self.out} already holds a run; pass --resume to continue it, or choose another --out"
            )
        if path.exists():
            self.restore(Checkpoint.load(path))
        write_json(self.out / "config.json", {"config": config_dict(self.config), **self.about()})

    def train(self) -> None:
        config = self.config
        bar = track(total=config.steps, initial=self.step, desc=f"{config.method} {self.dataset_id}", unit="step")
        while self.step < config.steps:
            started = time.perf_counter()
            boundary = min(self._next(config.log_every), self._next(config.checkpoint_every), config.steps)
            parts, indices = self._run_until(boundary, bar)
            self.seconds += time.perf_counter() - started
            self._record(parts, indices)
            bar.set_postfix({name: round(value, 3) for name, value in self.metrics[-1].items() if name != "step"})
            if self.out is not None and (self.step % config.checkpoint_every == 0 or self.step == config.steps):
                self.save()
        bar.close()

    def _next(self, every: int) -> int:
        return (self.step // every + 1) * every

    def _run_until(self, boundary: int, bar: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Steps up to `boundary`; the losses [steps] and the transitions used [steps, B], on the device."""
        history: list[dict[str, Tensor]] = []
        used: list[Tensor] = []
        while self.step < boundary:
            parts, indices = self.advance()
            history.append(parts)
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
        tensors = {
            f"{part}/{name}": value
            for part, module in self.modules.items()
            for name, value in module.state_dict().items()
        }
        tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        about = {"config": config_dict(self.config), **self.about()}
        Checkpoint(tensors, about).save(self.out / "checkpoint.safetensors")

    def restore(self, checkpoint: Checkpoint) -> None:
        about = checkpoint.about
        stored, wanted = about["config"], config_dict(self.config)
        changed = [f"{key}: {stored.get(key)} before, {wanted[key]} now" for key in wanted
                   if key not in MAY_CHANGE and stored.get(key) != wanted[key]]  # fmt: skip
        if about["dataset"] != self.dataset_id:
            changed.append(f"dataset: {about['dataset']} before, {self.dataset_id} now")
        if changed:
            raise CheckpointError(f"cannot resume with other settings ({'; '.join(changed)}); choose another --out")
        for part, module in self.modules.items():
            module.load_state_dict(checkpoint.section(part))
        restore_optimizer(self.optimizer, checkpoint.section("optimizer"))
        self.generator.set_state(checkpoint.tensors["generator"])
        self.step, self.seconds = about["step"], about["seconds"]
        self.metrics = [row for row in read_metrics(self.out) if row["step"] <= self.step]


def read_metrics(out: Path | None) -> Iterator[dict[str, float]]:
    """The rows of out/metrics.csv, if it is there."""
    path = (out or Path()) / "metrics.csv"
    if path.exists():
        with path.open() as file:
            for row in csv.DictReader(file):
                yield {name: int(value) if name == "step" else float(value) for name, value in row.items()}
