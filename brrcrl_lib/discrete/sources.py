"""`open_discrete(id)`: the data behind a name, whichever of three places it comes from.

ladder/pong      a frame store that `brrcrl data rollout --ladder pong` filled
sample/pong      the small sample that ships as data/atari/pong.npz, unpacked when it is first asked for
anything else    another frame store by that name, or a Minari dataset with discrete actions
"""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.data.atari import GAMES, rom_name
from brrcrl_lib.data.frame_format import frames_root, read_about
from brrcrl_lib.data.frames import FrameStore, open_frames
from brrcrl_lib.data.minari import action_space, load_dataset
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.data.storage import sha256
from brrcrl_lib.discrete.data import DiscreteData, VectorData
from brrcrl_lib.discrete.frames import FrameData
from brrcrl_lib.tools.publishing.ladder import LadderConfig, ladder
from brrcrl_lib.tools.publishing.pack import import_sample

DISCOUNT = 0.95
"""gamma in the paper's table of hyperparameters for Atari."""
SAMPLES = ROOT / "data" / "atari"
LADDER_STEPS, LADDER_SEED = 200_000, 0
"""The stores on which results are recorded."""


def open_discrete(
    dataset_id: str, with_next: bool = True, *, discount: float = DISCOUNT, clip_rewards: bool = True
) -> DiscreteData:
    """Data to train on. `with_next` hands out next observations too, which distributional_td needs.

    Rewards of games are clipped to [-1, 1], as in the paper; those of vectors stay as they are.
    """
    if not is_frames(dataset_id):
        return VectorData(load_dataset(dataset_id, discount=discount))
    kind, _, game = dataset_id.partition("/")
    if kind == "sample":
        _unpack(rom_name(game))
    elif kind == "ladder" and not _is_store(frames_root() / dataset_id):
        raise DatasetError(f"no frame store '{dataset_id}' in {frames_root()}; `{_rollout(rom_name(game))}` builds it")
    return FrameData(open_frames(dataset_id, discount=discount, clip_rewards=clip_rewards), with_next)


def has_discrete_actions(dataset_id: str) -> bool:
    """Whether the models of this package can be trained on it; a name that nothing answers to is refused."""
    return is_frames(dataset_id) or isinstance(action_space(dataset_id), gym.spaces.Discrete)


def is_frames(dataset_id: str) -> bool:
    """Frames by their name, or because a store of that name is there."""
    places = (frames_root() / dataset_id, Path(dataset_id))
    return dataset_id.split("/")[0] in ("ladder", "sample") or any(map(_is_store, places))


def prepare(dataset_id: str) -> str | None:
    """Build what `open_discrete` would miss, from what ships; the fingerprint of a frame store, None for the rest.

    Call it before several processes open the same name. A ladder is played into a store of LADDER_STEPS; where it
    was begun before, it goes on.
    """
    kind, _, game = dataset_id.partition("/")
    if not is_frames(dataset_id):
        return None
    if kind == "sample":
        _unpack(rom_name(game))
    elif kind == "ladder":
        folder = frames_root() / dataset_id
        if not _is_store(folder):
            ladder(LadderConfig(rom_name(game), steps=LADDER_STEPS, seed=LADDER_SEED))
        found = FrameStore(folder)
        if len(found) < LADDER_STEPS or found.about.get("seed") != LADDER_SEED:
            raise DatasetError(
                f"{folder} holds {len(found):,} transitions of seed {found.about.get('seed')}; results want "
                f"{LADDER_STEPS:,} of seed {LADDER_SEED}: `{_rollout(rom_name(game))} --overwrite` builds them"
            )
    return open_frames(dataset_id).fingerprint


def _unpack(game: str) -> None:
    """The shipped sample as the store sample/<game>, made anew when another sample ships."""
    file, folder = SAMPLES / f"{game}.npz", frames_root() / "sample" / game
    if not file.is_file():
        if _is_store(folder):
            return
        pack = f"brrcrl data pack ladder/{game} --out data/atari/{game}.npz"
        raise DatasetError(f"no sample of {game} at {file}; `{_rollout(game)}` and `{pack}` make one")
    if not _is_store(folder) or read_about(folder)["about"].get("packed_sha256") != sha256(file):
        import_sample(file, folder, overwrite=True)


def _is_store(folder: Path) -> bool:
    return (folder / "store.json").is_file()


def _rollout(game: str) -> str:
    return f"brrcrl data rollout --ladder {game} --steps {LADDER_STEPS} --seed {LADDER_SEED}"


def shipped_samples() -> list[str]:
    """The games of the samples that ship, the paper's four first."""
    here = {path.stem for path in SAMPLES.glob("*.npz")}
    return [game for game in GAMES if game in here] + sorted(here - set(GAMES))
