"""`brrcrl data collect --algorithm ppo`: train PPO on an Atari game and keep the policy at every stage.

    config.json                          what was asked for
    snapshots/step-0050176.safetensors   the policy at that step, in half precision
    learning_curve.csv                   what finished games scored in between
    state.safetensors                    network, optimiser, games under way, curve: renamed into place last

Frames are not kept: the policies fit into a few megabytes and play any number of them again (`ladder.py`).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.files import ROOT, git_revision, locked, partial_path, remove, versions, write_csv, write_json
from brrcrl_lib.base.limits import whole
from brrcrl_lib.base.settings import Count, EnvId, Name, OutPath, Seed, check_settings
from brrcrl_lib.data.atari import AtariConfig, AtariEnv, env_id, rom_name
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.agents.atari import AtariActor
from brrcrl_lib.tools.agents.play_atari import play_games
from brrcrl_lib.tools.collecting.ppo import PpoConfig, PpoLearner
from brrcrl_lib.tools.collecting.run_files import (
    EVALUATION_SEED,
    check_same_settings,
    read_settings,
    state_path,
    write_settings,
)
from brrcrl_lib.tools.publishing.folders import check_replaceable, replace_folder

LARGEST_LADDER = 8_000_000
"""Bytes that the policies of one game may take."""


@dataclass(frozen=True)
class AtariCollectConfig:
    """Train PPO on an Atari game and keep the policy at every stage."""

    env: EnvId
    """The game, for example ALE/Pong-v5."""
    out: OutPath
    """Run directory; an unfinished run there is continued."""
    algorithm: Literal["ppo"] = "ppo"
    """PPO of Stable-Baselines3; `--algorithm sac` is for continuous control and has other options."""
    steps: Count = 1_000_000
    """Environment steps, of four frames each, after which training ends."""
    seed: Seed = 0
    """Seed of the run; game g starts from seed * 1,000,000 + g."""
    snapshot_every: Count = 25_000
    """Steps between snapshots; each is saved and committed. The first is untrained."""
    ppo: PpoConfig = field(default_factory=PpoConfig)
    """How the agent learns."""
    sticky_actions: bool = False
    """Each screen repeats the previous action with probability 0.25."""
    publish_as: Name | None = None
    """Short name, for example pong: when training has ended, write its policies to data/policies/atari/pong."""
    rungs: Annotated[int, whole(2)] = 10
    """How many snapshots are published, from untrained to best."""
    measuring_games: Count = 8
    """Fresh games that measure each published policy."""
    policies: OutPath = ROOT / "data" / "policies" / "atari"
    """Folder for published policies."""


QUIET: dict[str, Any] = {"disable": True}
MAY_CHANGE = {"out", "steps", "publish_as", "rungs", "measuring_games", "policies"}


def collect_atari(config: AtariCollectConfig, progress: bool = True) -> list[dict[str, Any]]:
    """Run or continue a collection; return its learning curve."""
    check_settings(config)
    game = rom_name(config.env)  # refuses an unknown one before anything is written
    if config.publish_as is not None:
        check_replaceable(config.policies / config.publish_as, "ladder.json", overwrite=True)
    before = _learning_rate_before(config)
    torch.set_num_threads(1)
    learner = PpoLearner(config.env, config.seed, config.ppo, AtariConfig(sticky_actions=config.sticky_actions))
    with locked(config.out):
        write_settings(config.out, config)
        curve: list[dict[str, Any]] = learner.restore(config.out)["curve"] if state_path(config.out).exists() else []
        for point in curve:
            point.setdefault("learning_rate", before)
        if not curve:
            _commit(config, learner, curve, 0.0)
        with track(
            total=config.steps, initial=learner.step, unit="step", desc=game, **({} if progress else QUIET)
        ) as bar:
            started = time.perf_counter()
            while learner.step < config.steps:
                snapshots = learner.step // config.snapshot_every
                bar.update(learner.round())
                if learner.step // config.snapshot_every > snapshots or learner.step >= config.steps:
                    _commit(config, learner, curve, time.perf_counter() - started)
                    started = time.perf_counter()
                    bar.set_postfix(games=learner.games, score=curve[-1]["return_mean"])
    if config.publish_as is not None:
        publish_ladder(config, curve)
    return curve


def _learning_rate_before(config: AtariCollectConfig) -> float:
    """The learning rate of a run so far, which alone of PPO's settings may change: the curve says where it did."""
    if not (config.out / "config.json").exists():
        return config.ppo.learning_rate
    stored = read_settings(config.out).get("ppo")
    stored = stored if isinstance(stored, dict) else {}
    given = {"ppo": {**stored, "learning_rate": config.ppo.learning_rate}}
    check_same_settings(config.out, config, MAY_CHANGE, given)
    return stored.get("learning_rate", config.ppo.learning_rate)


def _commit(config: AtariCollectConfig, learner: PpoLearner, curve: list[dict[str, Any]], seconds: float) -> None:
    """Add a point to the curve and a snapshot; the checkpoint that names them comes last."""
    scores = np.array([score for score, _ in learner.finished])
    lengths = np.array([length for _, length in learner.finished])
    point: dict[str, Any] = {
        "step": learner.step,
        "games": len(scores),
        "return_mean": round(float(scores.mean()), 2) if len(scores) else None,
        "return_std": round(float(scores.std()), 2) if len(scores) else None,
        "return_max": float(scores.max()) if len(scores) else None,
        "length_mean": round(float(lengths.mean()), 1) if len(scores) else None,
        "seconds": round(seconds, 1),
        "learning_rate": config.ppo.learning_rate,
    }
    curve.append(point)
    learner.finished.clear()
    about = {key: value for key, value in point.items() if key != "seconds"}
    settings = {"env": env_id(config.env), "seed": config.seed, "sticky_actions": config.sticky_actions}
    learner.actor().save(snapshot_path(config.out, learner.step), **settings, training=about, step=learner.step)
    learner.save(config.out, curve=curve)
    write_csv(config.out / "learning_curve.csv", curve)


def snapshot_path(run: Path, step: int) -> Path:
    return run / "snapshots" / f"step-{step:08d}.safetensors"


# -- publishing ----------------------------------------------------------------------------------------------------


def choose_checkpoints(curve: list[dict[str, Any]], count: int) -> list[int]:
    """Indices of `count` points of the curve: the untrained one, the best, and returns evenly between the two.

    The best is the latest whose mean return comes within one standard error of the highest: among many noisy points
    the highest is as likely lucky as good. Where games were too few to tell, a point counts like the one before it.
    """
    returns: list[float] = []
    for point in curve:
        known = point["return_mean"]
        returns.append(known if known is not None else returns[-1] if returns else -np.inf)
    lowest = min((value for value in returns if np.isfinite(value)), default=0.0)
    heights = np.maximum(np.array(returns), lowest)
    top = curve[int(np.argmax(heights))]
    error = (top.get("return_std") or 0.0) / np.sqrt(max(1, top.get("games") or 1))
    best = int(np.flatnonzero(heights >= heights.max() - error)[-1])
    chosen = {0, best}
    for goal in np.linspace(heights[0], heights[best], count)[1:-1]:
        left = [index for index in range(best) if index not in chosen]
        if left:
            chosen.add(min(left, key=lambda index: (abs(heights[index] - goal), index)))
    spare = [index for index in range(len(curve)) if index not in chosen]
    missing = min(count - len(chosen), len(spare))
    if missing > 0:
        chosen |= {spare[place] for place in np.linspace(0, len(spare) - 1, missing).round().astype(int)}
    return sorted(chosen)


def publish_ladder(config: AtariCollectConfig, curve: list[dict[str, Any]]) -> Path:
    """Measure the chosen snapshots in fresh games and write them, the curve and a summary, all or nothing."""
    assert config.publish_as is not None
    target = config.policies / config.publish_as
    staging = partial_path(target)
    remove(staging)
    envs = [
        AtariEnv(config.env, AtariConfig(sticky_actions=config.sticky_actions)) for _ in range(config.measuring_games)
    ]
    rows = []
    for index in track(choose_checkpoints(curve, config.rungs), desc="measuring", unit="policy"):
        source = snapshot_path(config.out, curve[index]["step"])
        actor = AtariActor.load(source)
        seeds = range(EVALUATION_SEED, EVALUATION_SEED + config.measuring_games)
        scores = np.array([game.score for game in play_games(actor, envs, seeds)])
        measured = {
            "fresh_return_mean": round(float(scores.mean()), 2),
            "fresh_return_std": round(float(scores.std()), 2),
            "fresh_games": len(scores),
            "fresh_first_seed": EVALUATION_SEED,
        }
        actor.save(staging / source.name, **actor.about, **measured)
        rows.append({"file": source.name, "step": curve[index]["step"], **measured})
    size = sum(file.stat().st_size for file in staging.iterdir())
    if size > LARGEST_LADDER:
        remove(staging)
        raise DatasetError(
            f"{len(rows)} policies take {size:,} bytes, more than {LARGEST_LADDER:,}; publish fewer with --rungs"
        )
    write_csv(staging / "learning-curve.csv", curve)
    settings = {key: value for key, value in asdict(config).items() if key not in MAY_CHANGE}
    about = {"versions": versions(), "revision": git_revision(), "licence": "CC-BY-4.0"}
    write_json(staging / "ladder.json", {"training": settings, "policies": rows, "bytes": size, **about})
    check_replaceable(target, "ladder.json", overwrite=True)
    replace_folder(staging, target)
    return target
