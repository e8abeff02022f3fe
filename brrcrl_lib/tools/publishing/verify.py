"""`brrcrl data verify`: is every dataset what its card says, down to the simulator giving the same rewards?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import h5py
import numpy as np

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import versions
from brrcrl_lib.base.limits import RECORD, check_fields, whole
from brrcrl_lib.base.settings import check_settings, number
from brrcrl_lib.data.hdf5 import reading
from brrcrl_lib.data.minari import check_hash, load_dataset, read_episodes
from brrcrl_lib.data.registry import DatasetError, data_root, dataset_folder, list_datasets, read_metadata
from brrcrl_lib.data.storage import FIELDS, FlatEpisodes, part_paths
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.tools.agents.episodes import Episode
from brrcrl_lib.tools.publishing.minari_writer import episode_of

CARD = {"return_mean": number(), "versions": RECORD}
REPLAY_TOLERANCE = 1e-4
"""Largest difference between a stored float32 reward and the replayed one."""


@dataclass(frozen=True)
class VerifyConfig:
    """Check installed datasets."""

    ids: tuple[str, ...] = ()
    """Datasets to check; all that are installed by default."""
    root: Path | None = None
    """Folder of Minari datasets; by default MINARI_DATASETS_PATH or data/minari."""
    replay_episodes: Annotated[int, whole(0)] = 3
    """Episodes per dataset that are played again from their seeds."""


@dataclass(frozen=True)
class Check:
    """One row of the report."""

    dataset: str
    check: str
    ok: bool
    details: str


def verify(root: Path | str | None = None, ids: tuple[str, ...] | None = None, replay_episodes: int = 3) -> list[Check]:
    """Check the datasets `ids` under `root` (all by default); one row per dataset and check."""
    rows: list[Check] = []
    chosen = ids or list_datasets(root)
    if not chosen:
        raise DatasetError(f"there is no dataset in {data_root(root)}; name another folder with --root")
    for dataset_id in track(chosen, desc="verify", unit="dataset"):
        try:
            rows.extend(_checks(dataset_id, data_root(root), replay_episodes))
        except (KitError, OSError) as error:
            rows.append(Check(dataset_id, "readable", False, str(error)))
    return rows


def run_verify(config: VerifyConfig) -> list[Check]:
    """The command: like `verify`."""
    check_settings(config)
    return verify(config.root, config.ids, config.replay_episodes)


def _checks(dataset_id: str, root: Path, replay_episodes: int) -> Iterator[Check]:
    folder = dataset_folder(dataset_id, root)
    metadata = read_metadata(folder)
    card = check_fields(metadata.get("card") or {}, f"the card of {dataset_id}", {}, CARD, DatasetError)

    def row(check: str, ok: Any, details: str) -> Check:
        return Check(dataset_id, check, bool(ok), details)

    yield row("hashes", True, _check_hashes(folder, metadata))
    flat = FlatEpisodes.concatenate(list(read_episodes(folder, metadata)))
    data = load_dataset(dataset_id, discount=1.0, root=root)  # also checks shapes, T + 1 observations, finite values
    steps, episodes = len(data), data.episodes
    yield row(
        "shapes", True, f"{steps:,} steps, {len(flat.observations):,} observations (T + 1), {episodes:,} episodes"
    )

    ended = flat.terminations | flat.truncations
    last = flat.starts + flat.lengths - 1
    proper = ended.sum() == episodes and ended[last].all() and not (flat.terminations & flat.truncations).any()
    yield row("ends", proper, "one end per episode, at its last step" if proper else "ends inside or missing")

    yield row("minari view", *_compare_view(folder, flat))
    yield row("returns", *_compare_returns(data, flat, card))

    below, above = (data.action_low - data.actions).max(), (data.actions - data.action_high).max()
    excess = max(0.0, float(below), float(above))
    yield row("actions", excess == 0, "inside the box" if excess == 0 else f"up to {excess:.3g} outside the box")

    if replay_episodes:
        yield row("replay", *_replay(data, flat, card, replay_episodes))


def _check_hashes(folder: Path, metadata: dict[str, Any]) -> str:
    """Raises if a file is not the recorded one; otherwise says how many were compared."""
    if "sha256" not in metadata:
        return "no hashes recorded (a plain Minari dataset)"
    files = {*(folder / name for name in metadata["sha256"]), *part_paths(folder)}
    for file in files:
        check_hash(file)
    return f"{len(files)} files match"


def _compare_view(folder: Path, flat: FlatEpisodes) -> tuple[bool, str]:
    """Minari's episodes against the flat arrays, for a few of them."""
    numbers = _spread(len(flat), 5)
    file = folder / "main_data.hdf5"
    with reading(file), h5py.File(file, "r") as view:
        for index in numbers:
            group, episode = view[f"episode_{index}"], episode_of(flat, index)
            same = np.array_equal(group["observations"][()], episode.observations) and all(
                np.array_equal(group[name][()], getattr(episode, name)) for name in ("actions", "rewards")
            )
            if not same or set(FIELDS) - set(group):
                return False, f"episode {index} differs"
    return True, f"{len(numbers)} episodes read through Minari's layout are the same"


def _compare_returns(data: OfflineDataset, flat: FlatEpisodes, card: dict[str, Any]) -> tuple[bool, str]:
    """Sums of rewards against the RTG of first steps (discount 1) and against the card."""
    sums = np.array([episode_of(flat, number).total_reward for number in range(len(flat))])
    deviation = float(np.abs(sums - data.rtg[data.starts].double().numpy()).max())
    scale = max(1.0, float(np.abs(sums).max()))
    said = card.get("return_mean")
    agrees = said is None or abs(said - sums.mean()) <= 0.051
    details = f"mean {sums.mean():.1f}" + ("" if said is None else f", card says {said:.1f}")
    return deviation <= 1e-6 * scale and agrees, f"{details}; RTG of first steps deviates by {deviation:.1e}"


def _replay(data: OfflineDataset, flat: FlatEpisodes, card: dict[str, Any], count: int) -> tuple[bool, str]:
    """Play stored actions again from stored seeds, in the environment that the dataset names."""
    seeded = np.flatnonzero(flat.seeds >= 0)
    if len(seeded) == 0:
        return True, "skipped: no seeds recorded"
    env = data.make_env()
    numbers = seeded[_spread(len(seeded), count)]
    deviation = max(replay_deviation(env, episode_of(flat, int(number))) for number in numbers)
    env.close()
    details = f"{len(numbers)} episodes, rewards deviate by at most {deviation:.1e}"
    recorded, here = (card.get("versions") or {}).get("mujoco"), versions()["mujoco"]
    if deviation > REPLAY_TOLERANCE and recorded not in (None, here):
        details += f" (recorded with MuJoCo {recorded}, here is {here})"
    return deviation <= REPLAY_TOLERANCE, details


def replay_deviation(env: gym.Env, episode: Episode) -> float:
    """Largest difference between the stored rewards and those of the same actions from the same seed."""
    env.reset(seed=episode.seed)
    largest = 0.0
    for step, (action, stored) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        _, reward, terminated, truncated, _ = env.step(action)
        largest = max(largest, abs(float(reward) - float(stored)))
        if (terminated or truncated) != (step == len(episode) - 1):
            return float("inf")  # it ended at another step
    return largest


def _spread(total: int, count: int) -> list[int]:
    """At most `count` numbers, evenly spread over range(total)."""
    return sorted({int(number) for number in np.linspace(0, total - 1, min(count, total))})
