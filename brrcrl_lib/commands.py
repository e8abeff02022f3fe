"""`brrcrl train` and `brrcrl evaluate`: the engine from the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from brrcrl_lib.build import TrainConfig
from brrcrl_lib.checkpoints import CheckpointError
from brrcrl_lib.config import with_preset
from brrcrl_lib.datasets.minari import load_dataset
from brrcrl_lib.environments import make_env
from brrcrl_lib.evaluate import InferenceConfig, evaluate, make_policy
from brrcrl_lib.runs import git_revision, versions
from brrcrl_lib.scores import normalised_score, reference
from brrcrl_lib.train import export_model, fit, load_run


@dataclass(frozen=True)
class TrainCommand:
    """Fit a model to an offline dataset."""

    dataset: str
    """Dataset id, for example brrcrl/hopper/medium-replay-v0."""
    out: Path
    """Run directory."""
    preset: str = "laptop"
    """smoke, laptop or paper: the sizes that the flags below start from."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    export: Path | None = None
    """Also write the weights alone, in half precision, to this file."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)

    @classmethod
    def defaults(cls, words: Sequence[str]) -> TrainCommand:
        """What the flags left out stand for, given the preset among `words`."""
        given = dict(pairwise(words))
        preset = given.get("--preset", "laptop")
        return cls(tyro.MISSING, tyro.MISSING, preset, config=with_preset(TrainConfig, preset))


def train(command: TrainCommand) -> dict[str, Any]:
    dataset = load_dataset(command.dataset)
    run = fit(command.config, dataset, command.out, resume=command.resume, preset=command.preset)
    if command.export is not None:
        export_model(command.out, command.export)
    return {"run": command.out, **run.metrics[-1], "seconds": run.about["seconds"]}


@dataclass(frozen=True)
class EvaluateCommand:
    """Play a trained model and report what it earned."""

    run: Path
    """Run directory, or a checkpoint such as data/models/hopper-medium-replay-authors.safetensors."""
    episodes: int = 10
    """Episodes, played side by side."""
    seed: int = 0
    """Episode i starts from seed + i."""
    env: str | None = None
    """Environment id; the run's own if left out."""
    json: bool = False
    """Print one line of JSON instead of a table."""
    max_steps: int | None = None
    """Cut every episode off after so many steps, to try something out."""
    trace: Path | None = None
    """Write the per-step trace (target, predicted and observed return, energy) to this CSV file."""
    device: str = "auto"
    """auto, cpu, cuda, mps."""
    inference: Annotated[InferenceConfig, tyro.conf.arg(name="")] = field(default_factory=InferenceConfig)


def evaluate_command(command: EvaluateCommand) -> Any:
    row, trace = evaluate_run(command)
    if command.trace is not None:
        command.trace.parent.mkdir(parents=True, exist_ok=True)
        trace.to_csv(command.trace, index=False, float_format="%.4f")
    if command.json:
        print(json.dumps(row, default=str))
        return 0
    return row


def evaluate_run(command: EvaluateCommand) -> tuple[dict[str, Any], Any]:
    """One row of results with everything needed to make it again, and the per-step trace."""
    run = load_run(command.run, command.device)
    env_id = command.env or run.about["env"]
    space = make_env(env_id).action_space
    if space.shape != (run.about["action_size"],):
        raise CheckpointError(
            f"{command.run} was trained for {run.about['action_size']} action dimensions ({run.about['env']}), "
            f"but {env_id} has {space.shape}"
        )
    policy = make_policy(run, command.inference, command.seed)
    device = next(run.model.parameters()).device
    result = evaluate(
        policy,
        lambda: make_env(env_id),
        episodes=command.episodes,
        seed=command.seed,
        discount=run.about["discount"],
        device=device,
        max_steps=command.max_steps,
    )
    row = {
        "dataset": run.about["dataset"],
        "env": env_id,
        "method": run.config.method,
        "objective": run.config.objective,
        "train_seed": run.config.seed,
        "train_steps": run.about["step"],
        "train_seconds": run.about["seconds"],
        **asdict(command.inference),
        **result.summary(),
        "score": round(normalised_score(env_id, result.summary()["return_mean"]), 3),
        "reference": reference(env_id)._asdict(),
        "preset": run.about["preset"],
        "versions": versions(),
        "revision": git_revision(),
    }
    return row, result.trace
