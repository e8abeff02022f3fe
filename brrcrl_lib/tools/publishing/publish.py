"""`brrcrl data publish`: one collection run becomes medium-replay, medium, expert and medium-expert.

As in D4RL, medium-replay is everything the agent did until it was "medium" (and until there is enough of it), and
medium and expert are rollouts of the policy at two points of its training. The uniformly random steps before learning
starts are not the agent's, and rlkit, which D4RL's agents were trained with, has none: they are left out (with them, a
clone of HalfCheetah's data stands still: docs/regimes.md). Nothing here trains: it selects, plays, measures and writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.files import write_csv
from brrcrl_lib.base.limits import check_fields, whole
from brrcrl_lib.base.settings import Count, Envs, Name, check_settings, number
from brrcrl_lib.data.registry import DatasetError, data_root
from brrcrl_lib.data.storage import FlatEpisodes, part_paths, read_part
from brrcrl_lib.tools.agents.episodes import RoundedEnv
from brrcrl_lib.tools.agents.play_vectors import play_episodes
from brrcrl_lib.tools.agents.vectors import Actor
from brrcrl_lib.tools.collecting.run_files import EVALUATION_SEED, part_path, read_curve, read_settings, snapshot_path
from brrcrl_lib.tools.publishing.cards import episode_statistics, provenance, write_cards
from brrcrl_lib.tools.publishing.minari_writer import check_free, merge_parts, write_dataset
from brrcrl_lib.tools.publishing.rollout import RolloutConfig, rollout

FRESH_SEED = EVALUATION_SEED + 10_000
"""Start of the episodes that measure a chosen policy anew; the ones that chose it start from EVALUATION_SEED."""

LARGEST_FILE = 25_000_000


@dataclass(frozen=True)
class PublishConfig:
    """Turn a finished collection run into four datasets, two policies, a learning curve and cards."""

    run: Path
    """Run directory of `brrcrl data collect`."""
    name: Name
    """Short name of the environment, for example hopper: ids become brrcrl/hopper/medium-v1 and so on."""
    root: Path | None = None
    """Folder of Minari datasets; by default MINARI_DATASETS_PATH or data/minari. Policies go to ../policies."""
    version: Annotated[int, whole(0)] = 1
    """Version of the datasets, the end of their ids."""
    min_replay: Annotated[int, whole(0)] = 150_000
    """Transitions that medium-replay must hold at least: where medium is reached earlier, it goes on to the first
    snapshot with so many, and its card says so."""
    keep_random: bool = False
    """Leave in medium-replay the episodes that began before learning did, with uniformly random actions."""
    medium_share: Annotated[float, number(0, 1)] = 1 / 3
    """A policy is medium from this share of the expert's return on."""
    steps: Count = 100_000
    """Transitions of medium and of expert."""
    num_envs: Annotated[Envs, tyro.conf.arg(aliases=["--lanes"])] = 16
    """Environments played side by side."""
    fresh_episodes: Count = 10
    """Episodes of the mean action that measure each policy anew."""
    overwrite: bool = False
    """Replace datasets of the same ids."""


def publish(config: PublishConfig) -> dict[str, Path]:
    """Write the four datasets, the policies, the learning curve and the cards; return the datasets' folders."""
    check_settings(config)
    root = data_root(config.root)
    torch.set_num_threads(1)
    curve, settings = _read_run(config.run)
    kinds = ("medium-replay", "medium", "expert", "medium-expert")
    ids = {kind: f"brrcrl/{config.name}/{kind}-v{config.version}" for kind in kinds}
    taken = [dataset_id for dataset_id in ids.values() if (root / dataset_id / "data").exists()]
    if taken and not config.overwrite:
        raise DatasetError(f"{', '.join(taken)} exist in {root}; pass --overwrite to replace them")
    for dataset_id in ids.values():
        check_free(root, dataset_id, overwrite=True)
    make_env(settings["env"]).close()  # an environment that is not there is noticed before anything is written

    best = int(np.argmax([point["return_mean"] for point in curve]))
    expert = _measure_anew(config, settings["env"], curve[best])
    middle = choose_medium(curve, expert["fresh_return_mean"], config.medium_share)
    random = random_start(config.run, len(curve), 0 if config.keep_random else settings["random_steps"])
    last = choose_replay(curve, middle, config.min_replay, random[1])
    measured = {index: _measure_anew(config, settings["env"], curve[index]) for index in {middle, last}}
    share = {
        index: round(about["fresh_return_mean"] / expert["fresh_return_mean"], 3) for index, about in measured.items()
    }

    training = {
        key: value
        for key, value in settings.items()
        if key not in ("out", "stop_return", "steps", "publish_as", "algorithm")
    }
    algorithm = Actor.load(snapshot_path(config.run, curve[best]["step"])).algorithm
    shared = {"env": settings["env"], "training": {"algorithm": f"{algorithm} (Stable-Baselines3)", **training}}
    policies = root.parent / "policies"
    folders: dict[str, Path] = {}
    for seed, (kind, about) in enumerate({"medium": measured[middle], "expert": expert}.items()):
        policy = policies / f"{config.name}-{kind}-v{config.version}.safetensors"
        Actor.load(snapshot_path(config.run, about["step"])).save(policy, **about)
        request = RolloutConfig(policy, ids[kind], config.steps, None, config.num_envs, seed, False, root, True)
        extra = {"kind": kind, **shared, "share_of_expert": share[middle] if kind == "medium" else 1.0}
        folders[kind] = rollout(request, extra)
    write_csv(policies / f"{config.name}-learning-curve-v{config.version}.csv", curve)
    replay = {**shared, "policy": measured[last], "share_of_expert": share[last], "medium_step": curve[middle]["step"]}
    folders["medium-replay"] = _write_replay(config, root, ids["medium-replay"], curve[: last + 1], replay, random)
    folders["medium-expert"] = _write_combination(root, ids, folders, shared)
    _check_sizes(folders)
    write_cards(root)
    return folders


def choose_medium(curve: list[dict[str, Any]], expert_return: float, share: float) -> int:
    """Index of the first snapshot that earns at least `share` of the expert's return."""
    for index, point in enumerate(curve):
        if point["return_mean"] >= share * expert_return:
            return index
    raise DatasetError(
        f"no snapshot earns {share:.2f} of the expert's {expert_return:,.0f}; the run has {curve[-1]['step']:,} steps, "
        f"so collect further or lower --medium-share"
    )


def choose_replay(curve: list[dict[str, Any]], medium: int, min_replay: int, left_out: int = 0) -> int:
    """Index of the snapshot that ends medium-replay: `medium`, or the first later one with `min_replay` transitions.

    Its first `left_out` transitions do not count.
    """
    for index in range(medium, len(curve)):
        if curve[index]["step"] - left_out >= min_replay:
            return index
    raise DatasetError(
        f"the run has {curve[-1]['step'] - left_out:,} steps, fewer than the {min_replay:,} transitions of "
        f"medium-replay; collect further or lower --min-replay"
    )


def random_start(run: Path, intervals: int, random_steps: int) -> tuple[int, int]:
    """How many episodes began within the first `random_steps` steps of a run, and how many transitions they have."""
    lengths = np.concatenate([read_part(part_path(run, number)).lengths for number in range(1, intervals + 1)])
    early = np.cumsum(lengths) - lengths < random_steps
    return int(early.sum()), int(lengths[early].sum())


def _read_run(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Learning curve and settings of a run of SAC or DQN."""
    curve, settings = read_curve(run), read_settings(run)
    for point in curve:
        check_fields(
            point, f"the learning curve of {run}", {"step": whole(0), "return_mean": number()}, None, DatasetError
        )
    if not curve:
        raise DatasetError(f"{run} holds no collection run with a committed interval: its learning curve is empty")
    return curve, settings


def _measure_anew(config: PublishConfig, env_id: str, point: dict[str, Any]) -> dict[str, Any]:
    """What the learning curve says about a snapshot, and what it earns in episodes that did not choose it."""
    actor = Actor.load(snapshot_path(config.run, point["step"]))
    seeds = range(FRESH_SEED, FRESH_SEED + config.fresh_episodes)
    played = play_episodes(actor, lambda: make_env(env_id), seeds, config.fresh_episodes, stochastic=False)
    returns = np.array([episode.total_reward for episode in played])
    return {
        **actor.about,
        "fresh_return_mean": round(float(returns.mean()), 1),
        "fresh_return_std": round(float(returns.std()), 1),
        "fresh_episodes": config.fresh_episodes,
        "fresh_first_seed": FRESH_SEED,
    }


def _write_replay(
    config: PublishConfig,
    root: Path,
    dataset_id: str,
    curve: list[dict[str, Any]],
    about: dict[str, Any],
    random: tuple[int, int],
) -> Path:
    """Everything recorded in the intervals of `curve` (an interval is committed with its snapshot) but the `random`
    episodes, of so many transitions, that it began with."""
    first, *others = merge_parts(part_path(config.run, number) for number in range(1, len(curve) + 1))
    pieces = [first.without_head(random[0]), *others]
    statistics = episode_statistics(pieces)
    step, medium = curve[-1]["step"], about["medium_step"]
    if statistics["transitions"] + random[1] != step:
        raise DatasetError(
            f"{config.run / 'parts'} holds {statistics['transitions'] + random[1]:,} transitions up to the last "
            f"snapshot of medium-replay, but the learning curve says {step:,}"
        )
    algorithm = about["training"]["algorithm"].split()[0]
    description = f"Everything that a {algorithm} agent did in training until its policy was medium."
    if step > medium:
        description += f" That was after {medium:,} steps; so that there is enough of it, it goes on to {step:,}."
    if random[1]:
        description += f" The first {random[1]:,} steps, uniformly random and not the agent's, are left out."
    card = {"kind": "medium-replay", **about, "random_steps_left_out": random[1], **statistics}
    return _write(root, dataset_id, pieces, card, description=description)


def _write_combination(root: Path, ids: dict[str, str], folders: dict[str, Path], shared: dict[str, Any]) -> Path:
    """medium-expert: a view of the parts of both, without a second copy."""
    parts = list(itertools.chain.from_iterable(part_paths(folders[kind] / "data") for kind in ("medium", "expert")))
    card = {"kind": "medium-expert", **shared, **episode_statistics(read_part(part) for part in parts)}
    description = "Medium and expert together; its transitions lie in the files of those two datasets."
    combined = [ids["medium"], ids["expert"]]
    return _write(root, ids["medium-expert"], parts, card, description=description, combined_datasets=combined)


def _write(
    root: Path, dataset_id: str, pieces: Sequence[FlatEpisodes | Path], card: dict[str, Any], **said: Any
) -> Path:
    env = make_env(card["env"])
    assert env.spec is not None
    return write_dataset(
        root,
        dataset_id,
        pieces,
        env_spec=env.spec,
        observation_space=RoundedEnv(env).observation_space,
        action_space=env.action_space,
        card={
            **said,
            "algorithm_name": card["training"]["algorithm"].split()[0],
            "card": {**card, **provenance()},
        },
        overwrite=True,
    )


def _check_sizes(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        for file in (folder / "data").iterdir():
            if file.stat().st_size > LARGEST_FILE:
                raise DatasetError(f"{file} has {file.stat().st_size:,} bytes; no file may exceed {LARGEST_FILE:,}")
