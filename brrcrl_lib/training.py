"""Fit a method to data: `fit(config, source, out)`; read it back: `load_run(path)`.

A run directory holds config.json, metrics.csv and checkpoint.safetensors (every network and optimiser, step,
generator; `ema/...` and `best/...` where averages or the best weights are kept). Kill it at any moment; with `resume`
it ends with the same weights, bit for bit, as if nothing had happened.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from brrcrl_lib.base.devices import generator, pick_device, track
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import git_revision, locked, versions, write_csv, write_json
from brrcrl_lib.base.settings import check_settings
from brrcrl_lib.base.tensors import load_weights, optimizer_tensors, restore_optimizer
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError, checkpoint_file, config_dict
from brrcrl_lib.data.batch import Batch, Facts, Source
from brrcrl_lib.methods.base import Method, create, method_named
from brrcrl_lib.methods.settings import MethodConfig
from brrcrl_lib.policies import Policy

MAY_CHANGE = {"steps", "device", "compile", "log_every", "checkpoint_every"}
"""Settings with which a run may be resumed differently: they do not change what a step does."""
HELD_OUT_BATCHES = 16
"""Batches of held-out transitions that `patience` watches; always the same ones."""


@dataclass(frozen=True)
class Run:
    """A trained method, and how it got there."""

    method: Method
    config: Any
    about: dict[str, Any]
    """Dataset, environment, versions, steps, seconds."""
    metrics: list[dict[str, float]] = field(default_factory=list, repr=False)

    @property
    def model(self) -> Any:
        return self.method.model

    @property
    def facts(self) -> Facts:
        return self.method.facts

    def policy(self, act: Any = None, seed: int = 0) -> Policy:
        """What plays, under the settings `act` (the method's own defaults if left out)."""
        act = self.method.Act() if act is None else act
        if type(act) is not self.method.Act:
            raise CheckpointError(
                f"{self.method.name} is played with {self.method.Act.__name__}, not {type(act).__name__}"
            )
        return self.method.policy(act, generator(seed, self.method.device))


def split(config: MethodConfig, source: Any) -> tuple[Any, Any]:
    """(training episodes, held-out episodes), both from the best `top_share`; with nothing held out, the same twice."""
    if config.top_share is not None:
        source = source.top_fraction(config.top_share)
    return source.split(config.held_out, generator(0)) if config.held_out else (source, source)


def fixed_batches(config: MethodConfig, source: Source, method: Method) -> list[Batch]:
    """Always the same batches of `source`, on the method's device: what weights are compared on."""
    drawn = generator(0, source.device)
    sample = partial(source.sample, config.batch_size, drawn, method.needs)
    return [sample().to(method.device) for _ in range(HELD_OUT_BATCHES)]


@torch.no_grad()
def mean_losses(method: Method, batches: Sequence[Batch], device: torch.device) -> dict[str, float]:
    """Every part of the training loss, averaged over `batches`; its noise is always the same, drawn on `device`."""
    drawn = generator(0, device)
    with method.precision():
        found = [method.loss(batch, drawn) for batch in batches]
    return {name: float(torch.stack([parts[name] for parts in found]).double().mean()) for name in found[0]}


def fit(
    config: MethodConfig,
    source: Source,
    out: Path | None = None,
    *,
    resume: bool = False,
    preset: str = "laptop",
) -> Run:
    """Train on `source`; write the run to `out` if given. `resume` continues from out/checkpoint.safetensors."""
    refuse_other_returns(config, source.facts())
    training, held_out = split(config, source)
    trainer = Trainer(config, training, pick_device(config.device), out, preset)
    if config.patience is not None:
        trainer.watch(held_out)
    with nullcontext() if out is None else locked(out, purpose="training in"):
        trainer.begin(resume)
        trainer.train()
    return Run(trainer.method.as_it_plays(best=True), config, trainer.about(), trainer.metrics)


def refuse_other_returns(config: MethodConfig, facts: Facts) -> None:
    """Raise if the data count returns in another way than the configuration says."""
    if config.discount is not None and config.discount != facts.discount:
        raise KitError(
            f"{facts.dataset} was opened with discount {facts.discount:g} and the configuration says "
            f"{config.discount:g}; open it with the same one"
        )
    clip = facts.reward_clip or 0
    if config.reward_clip is not None and config.reward_clip != clip:
        raise KitError(
            f"{facts.dataset} was opened with reward_clip {clip:g} and the configuration says {config.reward_clip:g}; "
            f"open it with the same one (0: rewards as they are)"
        )


class Trainer:
    """The loop, and what it needs to stop and start again."""

    def __init__(
        self, config: MethodConfig, source: Source, device: torch.device, out: Path | None, preset: str
    ) -> None:
        self.config, self.device, self.out, self.preset = config, device, out, preset
        self.method = create(config, source.facts(), device)
        self.source = source.to(device)
        self.generator = generator(config.seed, self.source.device)
        self.step, self.seconds = 0, 0.0
        self.metrics: list[dict[str, float]] = []
        self.held_out: list[Batch] = []
        self.best: dict[str, Any] | None = None
        """`step` and `value` of the best check on held-out episodes."""

    def watch(self, held_out: Source) -> None:
        """Judge the weights by these episodes from now on."""
        self.held_out = fixed_batches(self.config, held_out.to(self.device), self.method)

    def about(self) -> dict[str, Any]:
        facts = self.method.facts
        best = {} if self.best is None else {"best": self.best}
        return {
            "method": self.method.name,
            "dataset": facts.dataset,
            "facts": facts.plain(),
            "step": self.step,
            "seconds": round(self.seconds, 1),
            "preset": self.preset,
            "device": str(self.device),
            "versions": versions(),
            "revision": git_revision(),
            **best,
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
            self.restore(Checkpoint.load(path), path)
        write_json(self.out / "config.json", {"config": config_dict(self.config), **self.about()})

    def train(self) -> None:
        config = self.config
        name = f"{self.method.name} {self.method.facts.dataset}"
        bar = track(total=config.steps, initial=self.step, desc=name, unit="step")
        while self.step < config.steps and not self.stopped:
            started = time.perf_counter()
            boundary = min(self._next(config.log_every), self._next(config.checkpoint_every), config.steps)
            parts, indices = self._run_until(boundary, bar)
            self.seconds += time.perf_counter() - started
            self._record(parts, indices)
            if self.held_out and self.step % config.checkpoint_every == 0:
                self._check()
            bar.set_postfix({name: round(value, 3) for name, value in self.metrics[-1].items() if name != "step"})
            if self.out is not None and (self.step % config.checkpoint_every == 0 or self.step == config.steps):
                self.save()
        bar.close()

    def _next(self, every: int) -> int:
        return (self.step // every + 1) * every

    def advance(self) -> tuple[dict[str, Tensor], Tensor]:
        """One step: the detached parts of the loss, and which transitions were used [B], all on the device."""
        batch = self.source.sample(self.config.batch_size, self.generator, self.method.needs).to(self.device)
        parts = self.method.update(batch, self.step, self.generator)
        self.method.average(self.step)
        return parts, batch.indices

    @property
    def stopped(self) -> bool:
        """Whether `patience` has run out."""
        patience = self.config.patience
        if patience is None or self.best is None:
            return False
        return self.step - self.best["step"] >= patience * self.config.checkpoint_every

    def _check(self) -> None:
        """The loss on held-out episodes, of the weights that would play now; the best ones are kept."""
        means = mean_losses(self.method.as_it_plays(), self.held_out, self.generator.device)
        self.metrics[-1] |= {f"held_out_{name}": round(value, 6) for name, value in means.items()}
        value = means[self.method.watched]
        if math.isfinite(value) and (self.best is None or value < self.best["value"]):
            self.best = {"step": self.step, "value": value}
            self.method.best = self.method.acting_copies()

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
        names = list(dict.fromkeys(name for entry in history for name in entry))
        parts = {name: torch.stack([entry[name] for entry in history if name in entry]) for name in names}
        return parts, torch.stack(used)

    def _record(self, parts: dict[str, Tensor], indices: Tensor) -> None:
        """One row of metrics; a loss that is not finite ends the run before it can spoil a checkpoint."""
        broken = (~torch.isfinite(parts["loss"])).nonzero()
        if len(broken):
            first = int(broken[0])
            step = self.step - len(parts["loss"]) + first + 1
            batch = indices[first][:5].tolist()
            saved = checkpoint_file(self.out) if self.out is not None else None
            there = saved is not None and saved.exists()
            kept = f"the last good checkpoint is {saved}" if there else "no checkpoint had been written yet"
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
            f"{part}/{name}": value for part, module in self._modules() for name, value in module.state_dict().items()
        }
        for label, optimizer in self.method.optimizers.items():
            tensors |= {f"optimizer/{label}/{name}": value for name, value in optimizer_tensors(optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        about = {"config": config_dict(self.config), **self.about()}
        Checkpoint(tensors, about).save(self.out / "checkpoint.safetensors")

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module with the name of its section in a checkpoint."""
        method = self.method
        for prefix, modules in (("", method.modules), ("ema/", method.averages), ("best/", method.best)):
            yield from ((prefix + name, module) for name, module in modules.items())

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        about, facts = checkpoint.about, self.method.facts
        stored, wanted = about["config"], config_dict(self.config)
        free = MAY_CHANGE if self.method.may_be_extended else MAY_CHANGE - {"steps"}
        if self.config.patience is not None:
            free = free - {"checkpoint_every"}  # it says when to look at held-out episodes
        pairs = {key: (stored.get(key), now) for key, now in wanted.items() if key not in free}
        pairs |= {"method": (about.get("method"), self.method.name), "dataset": (about["dataset"], facts.dataset)}
        changed = [f"{key}: {before} before, {now} now" for key, (before, now) in pairs.items() if before != now]
        if changed:
            raise CheckpointError(f"cannot resume with other settings ({'; '.join(changed)}); choose another --out")
        before = about["facts"].get("fingerprint")
        if before != facts.fingerprint:
            raise CheckpointError(
                f"{facts.dataset} holds other data than this run was trained on (fingerprint {before} before, "
                f"{facts.fingerprint} now); choose another --out"
            )
        self.best = about.get("best")
        if self.best is not None:
            self.method.best = self.method.acting_copies()
        try:
            for part, module in self._modules():
                load_weights(module, checkpoint.section(part))
            if about["step"] and not checkpoint.section("optimizer"):
                raise ValueError("its optimisers are missing, as in an export")
            for label, optimizer in self.method.optimizers.items():
                restore_optimizer(optimizer, checkpoint.section(f"optimizer/{label}"))
            self.generator.set_state(checkpoint.tensors["generator"])
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            why = " ".join(str(error).split())
            raise CheckpointError(
                f"{path} holds no state of {self.method.name} from which to go on ({why}); choose another --out"
            ) from None
        self.step, self.seconds = about["step"], about["seconds"]
        self.metrics = [row for row in read_metrics(self.out) if row["step"] <= self.step]


def read_metrics(out: Path | None) -> Iterator[dict[str, float]]:
    """The rows of out/metrics.csv, if it is there."""
    path = (out or Path()) / "metrics.csv"
    if not path.exists():
        return
    try:
        with path.open() as file:
            for row in csv.DictReader(file):
                step = int(row.pop("step"))
                yield {"step": step, **{name: float(value) for name, value in row.items() if value}}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise KitError(f"{path} is no table of metrics ({error!r}); restore it, or move it away") from None


# -- loading -----------------------------------------------------------------------------------------------------


def load_run(path: Path, device: str = "auto") -> Run:
    """A trained method from a run directory or a checkpoint file (as in data/models)."""
    file = checkpoint_file(path)
    checkpoint = Checkpoint.load(file)
    about = dict(checkpoint.about)
    if "method" not in about:
        raise CheckpointError(f"{file} does not say which method it holds; train it again")
    kind = method_named(about["method"])
    try:
        stored = about.pop("config")
        settings: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
        config, facts = kind.Config(**settings), Facts.from_plain(about["facts"])
        check_settings(config)
    except (KeyError, TypeError, AttributeError, KitError) as error:
        raise CheckpointError(f"{file} does not fit this version of the kit ({error}); train it again") from None
    _check_sizes(config, facts, checkpoint, file)
    method = create(config, facts, pick_device(device))
    for name, module in method.modules.items():
        weights = played_weights(checkpoint, name)
        try:
            if weights or name in kind.acting:
                load_weights(module, weights)
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise CheckpointError(f"{file} has other weights than {kind.name} ({why}); train it again") from None
        module.eval()
    metrics = list(read_metrics(path)) if path.is_dir() else []
    return Run(method, config, about, metrics)


def _check_sizes(config: MethodConfig, facts: Facts, checkpoint: Checkpoint, file: Path) -> None:
    """Refuse a configuration that asks for other networks than the file holds, before they take any memory."""
    try:
        with torch.device("meta"):
            planned = create(config, facts, "meta")
    except NotImplementedError:  # a method that looks at values while it builds cannot be planned
        return
    except RuntimeError as error:
        raise CheckpointError(f"{file} describes networks that cannot be built: {error}") from None
    for name in planned.acting:
        wanted = {key: value.shape for key, value in planned.modules[name].state_dict().items()}
        found = {key: value.shape for key, value in played_weights(checkpoint, name).items()}
        if wanted != found:
            odd = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
            raise CheckpointError(f"{file} has other weights than {planned.name} ({odd[0]} differs); train it again")


def played_weights(checkpoint: Checkpoint, module: str) -> dict[str, Tensor]:
    """The weights of a module that play: of the best check, else averaged, else the last ones."""
    return checkpoint.section(f"best/{module}") or checkpoint.section(f"ema/{module}") or checkpoint.section(module)


def export_model(run: Path, target: Path) -> None:
    """Write the weights of a run that playing needs, in half precision, for shipping: about a tenth of a checkpoint."""
    checkpoint = Checkpoint.load(run / "checkpoint.safetensors")
    tensors = {
        f"{part}/{name}": value.half() if value.numel() > 64 else value
        for part in method_named(checkpoint.about["method"]).acting
        for name, value in played_weights(checkpoint, part).items()
    }
    Checkpoint(tensors, checkpoint.about | {"weights": "float16"}).save(target)
