"""`brrcrl train METHOD`, `brrcrl evaluate`, `methods` and `experiments run`: the engine from the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tyro

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.checkpoints import Checkpoint, checkpoint_file
from brrcrl_lib.data.open import kind_of
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.methods.base import config_for, method_named, methods
from brrcrl_lib.study.experiments.plan import make_plan
from brrcrl_lib.study.experiments.row import measure as measure_run
from brrcrl_lib.study.experiments.running import ExperimentConfig, run_grid
from brrcrl_lib.tools.publishing.prepare import open_prepared, prepare
from brrcrl_lib.training import export_model, fit, load_run


@dataclass(frozen=True)
class Train:
    """Fit a method to an offline dataset."""

    dataset: str
    """Dataset id, for example brrcrl/hopper/medium-replay-v0, ladder/pong or sample/pong."""
    out: Path
    """Run directory."""
    preset: str = "laptop"
    """smoke, laptop, released or paper: the sizes that the flags below start from."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    export: Path | None = None
    """Also write the weights alone, in half precision, to this file."""


def train_command(words: Sequence[str]) -> Any:
    """What `brrcrl train` was asked for: the method comes first, the dataset and the preset decide the defaults."""
    method = words[0] if words and not words[0].startswith("-") else None
    if method is None:
        named = _value(words, "--method")
        if named:
            dataset = _value(words, "--dataset")
            games = dataset is not None and kind_of(dataset) != "box"
            new = ("br_rcrl_joint" if games else "br_rcrl") if named == "bayesian" else named
            raise KitError(f"the method comes first now, without --method: brrcrl train {new} --dataset ... --out ...")
        if {"-h", "--help"} & set(words):
            print("usage: brrcrl train METHOD --dataset ID --out FOLDER [options]; METHOD --help explains each\n")
            list_methods(None)
            raise SystemExit(0)
        raise KitError(f"which method? brrcrl train METHOD --dataset ... (there are: {', '.join(methods())})")
    kind, preset, dataset = method_named(method), _value(words, "--preset") or "laptop", _value(words, "--dataset")
    config = config_for(method, preset, kind_of(dataset) if dataset else kind.kinds[0])
    command = _with_settings(Train, "config", kind.Config, kind.summary)
    default = command(tyro.MISSING, tyro.MISSING, preset, config=config)
    return tyro.cli(command, prog=f"brrcrl train {method}", args=list(words[1:]), default=default)


def train(command: Any) -> dict[str, Any]:
    if command.export is not None:
        _writable(command.export)
    source = open_prepared(command.dataset, discount=command.config.discount, reward_clip=command.config.reward_clip)
    run = fit(command.config, source, command.out, resume=command.resume, preset=command.preset)
    if command.export is not None:
        export_model(command.out, command.export)
    return {"run": command.out, **run.metrics[-1], "seconds": run.about["seconds"]}


@dataclass(frozen=True)
class Evaluate:
    """Play a trained model and report what it earned: raw scores, whatever it learned from.

    How it plays are flags of its method: brrcrl evaluate --run runs/x --help lists those too.
    """

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


def evaluate_command(words: Sequence[str]) -> Any:
    """What `brrcrl evaluate` was asked for; the flags of a run's method follow once --run is known."""
    run = _value(words, "--run")
    if run is None:
        return tyro.cli(Evaluate, prog="brrcrl evaluate", args=list(words))
    about = Checkpoint.load(checkpoint_file(Path(run))).about
    if "method" not in about:
        raise KitError(f"{run} does not say which method it holds; train it again")
    method = method_named(about["method"])
    command = _with_settings(Evaluate, "act", method.Act, f"Play a run of {method.name}: {method.summary}.")
    return tyro.cli(command, prog="brrcrl evaluate", args=list(words))


def evaluate(command: Any) -> Any:
    if command.trace is not None:
        _writable(command.trace)
    run = load_run(command.run, command.device)
    row, trace = measure_run(
        run, command.act, env=command.env, episodes=command.episodes, seed=command.seed, max_steps=command.max_steps
    )
    if command.trace is not None:
        trace.to_csv(command.trace, index=False, float_format="%.4f")
    if command.json:
        print(json.dumps(row, default=str))
        return 0
    return row


def run_experiments(config: ExperimentConfig) -> int:
    """Build the frame stores that missing cells need, then run the grid, which says what could not be built."""
    plan = make_plan(config)
    wanted = [cell for cell in plan.every if cell.key == config.key] if config.key else plan.missing()
    for dataset in dict.fromkeys(cell.dataset for cell in wanted):
        with suppress(DatasetError, OSError):
            prepare(dataset)
    return run_grid(config)


@dataclass(frozen=True)
class ListMethods:
    """List the methods: name, the data they take, what they need of a transition, what they are."""


def list_methods(config: ListMethods | None) -> int:
    for name, method in methods().items():
        asks = [f"windows of {method.needs.context}"] if method.needs.context else []
        asks += ["next states"] if method.needs.next else []
        print(f"{name:<15} {', '.join(method.kinds):<22} {', '.join(asks) or '-':<14} {method.summary}")
    return 0


@dataclass(frozen=True)
class DataCard:
    """What a dataset is good for, in one look: its returns over time, its junk, and what it cannot carry."""

    dataset: str
    """Dataset id of vectors, for example brrcrl/hopper/medium-replay-v0."""
    expert_return: float | None = None
    """Return of an expert; left out, what the dataset's card says, or else D4RL's reference, or else the best
    episode."""


def data_card(config: DataCard) -> int:
    from brrcrl_lib.data.minari import load_dataset
    from brrcrl_lib.study.analysis.data_quality import describe, expert_of, measure

    if kind_of(config.dataset) == "pixels":
        raise KitError(f"{config.dataset} holds frames; the cards beside data/atari/*.npz describe games")
    dataset = load_dataset(config.dataset)
    print(describe(measure(dataset, config.expert_return or expert_of(dataset))))
    return 0


# -- help ----------------------------------------------------------------------------------------------------------


def _with_settings(command: type, name: str, settings: type, text: str) -> Any:
    """`command` with the flags of `settings` beside its own."""
    flags = (name, Annotated[settings, tyro.conf.arg(name="")], field(default_factory=settings))
    made = make_dataclass(command.__name__, [flags], bases=(command,), frozen=True)
    made.__doc__ = text
    return made


def _value(words: Sequence[str], flag: str) -> str | None:
    """What follows `flag` among words that are not parsed yet, as the next word or behind an equals sign."""
    for word, following in pairwise([*words, ""]):
        if word == flag and following:
            return following
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def _writable(path: Path) -> None:
    """Find out before the work whether its result can be written."""
    if path.is_dir() or path == Path():
        raise KitError(f"{path} is a folder; name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
