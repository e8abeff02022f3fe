"""`open_source(id)`: the data behind a name, whichever of three places it comes from.

ladder/pong      a frame store that `brrcrl data rollout --ladder pong` filled
sample/pong      a frame store that `brrcrl data unpack` made of the small sample that ships as data/atari/pong.npz
anything else    another frame store by that name, or a Minari dataset of vectors

Nothing is made here: what is missing is an error with the command that makes it.
"""

from __future__ import annotations

import gymnasium as gym

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.data.atari import rom_name
from brrcrl_lib.data.batch import Source
from brrcrl_lib.data.frame_format import frames_root
from brrcrl_lib.data.frame_source import FrameSource
from brrcrl_lib.data.frames import is_frames, open_frames
from brrcrl_lib.data.minari import action_space, load_dataset
from brrcrl_lib.data.registry import DatasetError, missing_dataset_message
from brrcrl_lib.worlds import GAMES, KINDS, DatasetName

LADDER_STEPS, LADDER_SEED = 200_000, 0
"""The stores of ladders on which results are recorded."""
SAMPLES = ROOT / "data" / "atari"


def open_source(dataset_id: str, *, discount: float | None = None, reward_clip: float | None = None) -> Source:
    """Data to train on, with reward-to-go for `discount`.

    Left out (None), the discount is the paper's (0.99 for a box of actions, 0.95 for discrete ones), and rewards of
    games are clipped to [-1, 1]; a `reward_clip` of 0 leaves rewards as they are.
    """
    kind = kind_of(dataset_id)
    if discount is None:
        discount = KINDS["box" if kind == "box" else "pixels"].discount or 1.0
    if kind != "pixels":
        dataset = load_dataset(dataset_id, discount=discount)
        return dataset.clip_rewards(reward_clip) if reward_clip else dataset
    if reward_clip not in (None, 0, 1):
        raise DatasetError(
            f"rewards of games are clipped to [-1, 1] (reward_clip 1) or not at all (0); not {reward_clip}"
        )
    name = DatasetName.parse(dataset_id)
    commands = {"ladder": rollout_command, "sample": unpack_command}
    missing = not (frames_root() / dataset_id / "store.json").is_file()
    if missing and not name.namespace and name.kind in commands:
        command = commands[name.kind](rom_name(name.world_name))
        raise DatasetError(f"no frame store '{dataset_id}' in {frames_root()}; `{command}` builds it")
    return FrameSource(open_frames(dataset_id, discount=discount, clip_rewards=reward_clip != 0))


def kind_of(dataset_id: str) -> str:
    """box, discrete or pixels: as the data say, or the card of their world where they are not here."""
    if is_frames(dataset_id):
        return "pixels"
    carded = DatasetName.parse(dataset_id).world.kind
    if carded is not None and missing_dataset_message(dataset_id):
        return carded
    return "discrete" if isinstance(action_space(dataset_id), gym.spaces.Discrete) else "box"


def rollout_command(game: str) -> str:
    """What builds the store of a game on which results are recorded."""
    return f"brrcrl data rollout --ladder {game} --steps {LADDER_STEPS} --seed {LADDER_SEED}"


def unpack_command(game: str) -> str:
    """What makes a store of the sample of a game, and before that the sample where none ships."""
    file = SAMPLES / f"{game}.npz"
    pack = f"brrcrl data rollout --ladder {game} && brrcrl data pack ladder/{game} --out {file} && "
    return f"{'' if file.is_file() else pack}brrcrl data unpack {file} --name sample/{game}"


def shipped_samples() -> list[str]:
    """The games of the samples that ship, the paper's four first."""
    here = {path.stem for path in SAMPLES.glob("*.npz")}
    return [game for game in GAMES if game in here] + sorted(here - set(GAMES))
