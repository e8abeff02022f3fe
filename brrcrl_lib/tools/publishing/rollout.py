"""`brrcrl data rollout`: a policy file becomes a dataset of any size.

Seeds are played in blocks, and each finished block is one file in a staging folder. A block's episodes depend on
its seeds and on nothing else, so a run that was killed and started again ends with the same dataset.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import h5py
import numpy as np
import torch
import tyro

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.files import locked, remove, sha256
from brrcrl_lib.base.settings import Count, EnvId, Envs, OutPath, Seed, check_settings
from brrcrl_lib.data.hdf5 import numbers, reading
from brrcrl_lib.data.registry import DatasetError, data_root
from brrcrl_lib.data.storage import FlatEpisodes
from brrcrl_lib.tools.agents.episodes import Episode, RoundedEnv
from brrcrl_lib.tools.agents.play_vectors import play_episodes
from brrcrl_lib.tools.agents.vectors import Actor, check_fit
from brrcrl_lib.tools.publishing.cards import episode_statistics, provenance
from brrcrl_lib.tools.publishing.minari_writer import check_free, flatten, merge_parts, write_dataset, write_part

ROLLOUT_SEED = 1_000_000_000
"""Rollouts start from here, apart from the seeds of training and evaluation episodes."""


@dataclass(frozen=True)
class RolloutConfig:
    """Play a policy and record what it does as a Minari dataset.

    `--ladder pong` plays all policies of an Atari game into a frame store instead; --ladder pong --help explains.
    """

    policy: OutPath
    """A safetensors file of data/policies."""
    id: str
    """Dataset id to write, for example mine/hopper/medium-v0."""
    steps: Count = 1_000_000
    """Transitions to record; the last episode is kept whole."""
    env: EnvId | None = None
    """Gymnasium id; by default the one that the policy was trained in."""
    num_envs: Annotated[Envs, tyro.conf.arg(aliases=["--lanes"])] = 16
    """Environments played side by side."""
    seed: Seed = 0
    """Choose another number for other episodes of the same policy."""
    deterministic: bool = False
    """Play the mean action instead of sampling."""
    root: Path | None = None
    """Folder of Minari datasets; by default MINARI_DATASETS_PATH or data/minari."""
    overwrite: bool = False
    """Replace a dataset of the same id."""


def rollout(config: RolloutConfig, extra: dict[str, Any] | None = None) -> Path:
    """Run or continue a rollout; return the folder of the finished dataset. `extra` goes on its card."""
    check_settings(config)
    root = data_root(config.root)
    check_free(root, config.id, config.overwrite)
    actor = Actor.load(config.policy)
    env_id = config.env or actor.about.get("env")
    if env_id is None:
        raise DatasetError(f"{config.policy} does not say which environment it belongs to; pass --env")
    env = make_env(env_id)
    misfit = check_fit(actor, env)
    if misfit:
        raise DatasetError(f"{config.policy} {misfit}")
    torch.set_num_threads(1)
    staging = root / ".staging" / config.id
    first_seed = ROLLOUT_SEED + 1_000_000 * config.seed
    with locked(staging):
        parts = play_blocks(
            actor,
            lambda: make_env(env_id),
            first_seed,
            config.steps,
            config.num_envs,
            not config.deterministic,
            staging / staging_key(config.policy, env_id, config),
        )
        pieces = list(merge_parts(parts))
        pieces[-1] = pieces[-1].head(_enough(pieces, config.steps))
        assert env.spec is not None
        target = write_dataset(
            root,
            config.id,
            pieces,
            env_spec=env.spec,
            observation_space=RoundedEnv(env).observation_space,
            action_space=env.action_space,
            card={
                "description": f"{'Deterministic' if config.deterministic else 'Stochastic'} rollouts of one "
                f"{actor.algorithm} policy.",
                "algorithm_name": actor.algorithm,
                "card": {
                    "kind": "rollout",
                    "env": env_id,
                    "policy": {"file": config.policy.name, "sha256": sha256(config.policy), **actor.about},
                    "first_seed": first_seed,
                    "lanes": config.num_envs,
                    **episode_statistics(pieces),
                    **provenance(),
                    **(extra or {}),
                },
            },
            overwrite=config.overwrite,
        )
        remove(staging)
    return target


def staging_key(policy: Path, env_id: str, config: RolloutConfig) -> str:
    """Name of the staging folder: blocks are taken up again only if everything that shaped them is the same."""
    mode = "mean" if config.deterministic else "sampled"
    return f"{sha256(policy)[:12]}-{env_id.replace('/', '_')}-{mode}-lanes{config.num_envs}-seed{config.seed}"


def play_blocks(
    actor: Actor,
    make_env: Callable[[], gym.Env],
    first_seed: int,
    steps: int,
    num_envs: int,
    stochastic: bool,
    staging: Path,
) -> list[Path]:
    """Files with whole episodes of at least `steps` transitions in all; those that exist are not played again."""
    files: list[Path] = []
    pool = itertools.cycle([_StaysOpen(make_env()) for _ in range(num_envs)])  # made once, used by every block
    recorded, block = 0, 2 * num_envs
    bar = track(total=steps, unit="step", desc="rollout")
    while recorded < steps:
        number = len(files)
        file = staging / f"block-{number:05d}.hdf5"
        if not file.exists():
            seeds = range(first_seed + number * block, first_seed + (number + 1) * block)
            played: list[Episode] = list(play_episodes(actor, lambda: next(pool), seeds, num_envs, stochastic))
            write_part(file, flatten(played))
        with reading(file), h5py.File(file, "r") as stored:
            length = int(np.sum(numbers(stored, "lengths")[()]))
        files.append(file)
        recorded += length
        bar.update(length)
    bar.close()
    return files


class _StaysOpen(gym.Wrapper):
    """An environment that outlives the block that played in it."""

    def close(self) -> None:
        pass


def _enough(pieces: list[FlatEpisodes], steps: int) -> int:
    """How many episodes of the last piece are needed to reach `steps` in all."""
    missing = steps - sum(len(piece.rewards) for piece in pieces[:-1])
    return int(np.searchsorted(np.cumsum(pieces[-1].lengths), missing)) + 1
