"""`brrcrl train` and `brrcrl evaluate`: the engine from the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.files import git_revision, versions
from brrcrl_lib.build import TrainConfig
from brrcrl_lib.discrete.build import DiscreteConfig
from brrcrl_lib.discrete.policies import DiscreteInference
from brrcrl_lib.evaluate import Evaluation, InferenceConfig, evaluate
from brrcrl_lib.families import FAMILIES, Family, family_of_data, family_of_run, needs_next
from brrcrl_lib.study.claims.scores import normalised_score, reference
from brrcrl_lib.train import export_model


@dataclass(frozen=True)
class _Train:
    dataset: str
    """Dataset id, for example brrcrl/hopper/medium-replay-v0, ladder/pong or sample/pong."""
    out: Path
    """Run directory."""
    preset: str = "laptop"
    """smoke, laptop or paper: the sizes that the flags below start from."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    export: Path | None = None
    """Also write the weights alone, in half precision, to this file."""


@dataclass(frozen=True)
class TrainCommand(_Train):
    """Fit a model to an offline dataset.

    The flags are those for continuous actions; with a dataset of discrete ones before it, --help lists theirs:
    brrcrl train --dataset ladder/pong --help.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)

    @staticmethod
    def defaults(words: Sequence[str]) -> TrainCommand | DiscreteTrainCommand:
        """What the flags left out stand for, given the dataset and the preset among `words`."""
        preset, dataset = _value(words, "--preset") or "laptop", _value(words, "--dataset")
        family = family_of_data(dataset) if dataset else FAMILIES["continuous"]
        _refuse_foreign_flags(words, family, f"{dataset} has")
        config = with_preset(family.config, preset)
        kind = DiscreteTrainCommand if isinstance(config, DiscreteConfig) else TrainCommand
        return kind(tyro.MISSING, tyro.MISSING, preset, config=config)


@dataclass(frozen=True)
class DiscreteTrainCommand(_Train):
    """Fit a model to an offline dataset of discrete actions: vectors, or frames of an Atari game."""

    config: Annotated[DiscreteConfig, tyro.conf.arg(name="")] = field(default_factory=DiscreteConfig)


def train(command: TrainCommand | DiscreteTrainCommand) -> dict[str, Any]:
    family = family_of_data(command.dataset)
    data = family.open(command.dataset, needs_next(command.config))
    run = family.fit(command.config, data, command.out, resume=command.resume, preset=command.preset)
    if command.export is not None:
        export_model(command.out, command.export)
    return {"run": command.out, **run.metrics[-1], "seconds": run.about["seconds"]}


@dataclass(frozen=True)
class _Evaluate:
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
    """Cut every episode off after so many steps, which the row then says; games end after 108,000 screens anyway."""
    trace: Path | None = None
    """Write the per-step trace (target, predicted and observed return, energy) to this CSV file."""
    device: str = "auto"
    """auto, cpu, cuda, mps."""


@dataclass(frozen=True)
class EvaluateCommand(_Evaluate):
    """Play a trained model and report what it earned.

    The flags are those for continuous actions; with a run of discrete ones before it, --help lists theirs:
    brrcrl evaluate --run runs/x --help.
    """

    inference: Annotated[InferenceConfig, tyro.conf.arg(name="")] = field(default_factory=InferenceConfig)

    @staticmethod
    def defaults(words: Sequence[str]) -> EvaluateCommand | DiscreteEvaluateCommand:
        """What the flags left out stand for, given the run among `words`."""
        run = _value(words, "--run")
        family = family_of_run(Path(run)) if run else FAMILIES["continuous"]
        _refuse_foreign_flags(words, family, f"{run} was trained for")
        return COMMAND_OF[family.name](tyro.MISSING)


@dataclass(frozen=True)
class DiscreteEvaluateCommand(_Evaluate):
    """Play a trained model of discrete actions and report what it earned: raw scores, whatever it learned from."""

    inference: Annotated[DiscreteInference, tyro.conf.arg(name="")] = field(default_factory=DiscreteInference)


COMMAND_OF = {"continuous": EvaluateCommand, "discrete": DiscreteEvaluateCommand}


def evaluate_command(command: EvaluateCommand | DiscreteEvaluateCommand) -> Any:
    row, trace = evaluate_run(command)
    if command.trace is not None:
        command.trace.parent.mkdir(parents=True, exist_ok=True)
        trace.to_csv(command.trace, index=False, float_format="%.4f")
    if command.json:
        print(json.dumps(row, default=str))
        return 0
    return row


def evaluate_run(command: EvaluateCommand | DiscreteEvaluateCommand) -> tuple[dict[str, Any], Any]:
    """One row of results with everything needed to make it again, and the per-step trace."""
    family = family_of_run(command.run)
    if not isinstance(command.inference, family.inference):
        raise ValueError(
            f"{command.run} was trained for {family.name} actions; {family.inference.__name__} plays those"
        )
    run = family.load_run(command.run, command.device)
    env_id = command.env or run.about["env"]
    if env_id is None:
        raise ValueError(f"{command.run} does not say which environment its data came from; name it with --env")
    make_env = family.environment(command.run, run.about, env_id)
    policy = family.make_policy(run, command.inference, command.seed)
    result = evaluate(
        policy,
        make_env,
        episodes=command.episodes,
        seed=command.seed,
        discount=run.about["discount"],
        device=next(run.model.parameters()).device,
        max_steps=command.max_steps,
        reward_clip=run.about.get("reward_clip"),
    )
    row = {
        "dataset": run.about["dataset"],
        "env": env_id,
        "method": run.config.method,
        "objective": getattr(run.config, family.objective),
        "train_seed": run.config.seed,
        "train_steps": run.about["step"],
        "train_seconds": run.about["seconds"],
        **asdict(command.inference),
        **result.summary(),
        **_cut(result, command.max_steps),
        **_score(env_id, result.summary()["return_mean"]),
        **{name: run.about[name] for name in family.recorded},
        "preset": run.about["preset"],
        "versions": versions(),
        "revision": git_revision(),
    }
    return row, result.trace


def _cut(result: Evaluation, max_steps: int | None) -> dict[str, int]:
    """How many episodes were still running at the cap, if there was one: their returns are what they had by then."""
    return {} if max_steps is None else {"max_steps": max_steps, "cut_off": int((result.lengths >= max_steps).sum())}


def _score(env_id: str, mean: float) -> dict[str, Any]:
    """The normalised score, for environments that have a scale."""
    try:
        scale = reference(env_id)
    except ValueError:
        return {"score": None, "reference": None}
    return {"score": round(float(normalised_score(env_id, mean)), 3), "reference": scale._asdict()}


# -- reading words before flags are known --------------------------------------------------------------------------


def _value(words: Sequence[str], flag: str) -> str | None:
    """What follows `flag`, as the next word or behind an equals sign."""
    for word, following in pairwise([*words, ""]):
        if word == flag and following:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def _refuse_foreign_flags(words: Sequence[str], family: Family, subject: str) -> None:
    """One sentence about a flag that only the other family has."""
    given = [word.split("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_") for word in words
             if word.startswith("--")]  # fmt: skip
    for other in FAMILIES.values():
        for name in given:
            if name in _names(other) - _names(family):
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} is for {other.name} actions; {subject} {family.name} ones")


def _names(family: Family) -> set[str]:
    return {item.name for kind in (family.config, family.inference) for item in fields(kind)}
