"""Continuous and discrete actions behind one face, so that commands and grids are written once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.build import TrainConfig
from brrcrl_lib.checkpoints import Checkpoint, CheckpointError, checkpoint_file
from brrcrl_lib.data.atari import AtariConfig, AtariEnv, rom_name
from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.discrete.build import DiscreteConfig
from brrcrl_lib.discrete.policies import DiscreteInference, make_discrete_policy
from brrcrl_lib.discrete.sources import has_discrete_actions, open_discrete, prepare
from brrcrl_lib.discrete.train import fit_discrete, load_discrete_run
from brrcrl_lib.evaluate import InferenceConfig, make_policy
from brrcrl_lib.policies import Policy
from brrcrl_lib.train import fit, load_run

MakeEnv = Callable[[], gym.Env]


@dataclass(frozen=True)
class Family:
    """All that differs between models of continuous and of discrete actions."""

    name: str
    config: type[Any]
    """What is trained."""
    inference: type[Any]
    """How it is made to act."""
    open: Callable[[str, bool], Any]
    """Data by its id, with next observations or without."""
    prepare: Callable[[str], str | None]
    """Build what `open` would miss; the fingerprint of data that can be built in different ways."""
    fit: Callable[..., Any]
    load_run: Callable[[Path, str], Any]
    make_policy: Callable[[Any, Any, int], Policy]
    environment: Callable[[Path, Mapping[str, Any], str], MakeEnv]
    """What makes the environment that a run can play in, after a check that it can."""
    objective: str
    """The field of `config` that says how returns are learned."""
    recorded: tuple[str, ...] = ()
    """What a run says about itself that belongs into a row of results."""


def continuous_environment(run: Path, about: Mapping[str, Any], env_id: str) -> MakeEnv:
    space = make_env(env_id).action_space
    if space.shape != (about["action_size"],):
        raise CheckpointError(
            f"{run} was trained for {about['action_size']} action dimensions ({about['env']}), "
            f"but {env_id} has {space.shape}"
        )
    return lambda: make_env(env_id)


def discrete_environment(run: Path, about: Mapping[str, Any], env_id: str) -> MakeEnv:
    """Games are presented as they were when the data were made; what they pay is never clipped."""
    shape = tuple(about["observation_shape"])
    pixels = len(shape) == 3
    if pixels and rom_name(env_id) != rom_name(about["env"]):
        raise CheckpointError(f"{run} was trained on {about['env']} and cannot play {env_id}")
    flags = AtariConfig(**about["play"])

    def make() -> gym.Env:
        return AtariEnv(env_id, flags) if pixels else make_env(env_id)

    env = make()
    if getattr(env.action_space, "n", None) != about["action_count"] or env.observation_space.shape != shape:
        raise CheckpointError(
            f"{run} was trained for {about['action_count']} actions and observations {shape} ({about['env']}), "
            f"but {env_id} has {env.action_space} and {env.observation_space.shape}"
        )
    return make


FAMILIES = {
    "continuous": Family(
        name="continuous",
        config=TrainConfig,
        inference=InferenceConfig,
        open=lambda dataset_id, with_next: load_dataset(dataset_id),
        prepare=lambda dataset_id: None,
        fit=fit,
        load_run=load_run,
        make_policy=make_policy,
        environment=continuous_environment,
        objective="objective",
    ),
    "discrete": Family(
        name="discrete",
        config=DiscreteConfig,
        inference=DiscreteInference,
        open=open_discrete,
        prepare=prepare,
        fit=fit_discrete,
        load_run=load_discrete_run,
        make_policy=make_discrete_policy,
        environment=discrete_environment,
        objective="learner",
        recorded=("discount", "reward_clip", "play", "fingerprint"),
    ),
}


def family_of_data(dataset_id: str) -> Family:
    """By the actions of the dataset, which must be there, or be a name from which it can be built."""
    return FAMILIES["discrete" if has_discrete_actions(dataset_id) else "continuous"]


def family_of_run(run: Path) -> Family:
    """By what a run directory or a checkpoint says of itself."""
    return FAMILIES[Checkpoint.load(checkpoint_file(run)).about.get("kind", "continuous")]


def needs_next(config: Any) -> bool:
    """Whether a training looks at next observations."""
    return getattr(config, "bootstraps", False)
