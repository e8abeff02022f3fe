"""`prepare`: build what opening a dataset of games would miss, from what ships."""

from __future__ import annotations

from brrcrl_lib.data.atari import rom_name
from brrcrl_lib.data.frame_format import frames_root
from brrcrl_lib.data.frames import FrameStore, is_frames, open_frames
from brrcrl_lib.data.open import LADDER_SEED, LADDER_STEPS, rollout_command
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.data.samples import unpack_shipped
from brrcrl_lib.tools.publishing.ladder import LadderConfig, ladder
from brrcrl_lib.worlds import DatasetName


def prepare(dataset_id: str) -> str | None:
    """Unpack a sample or play a ladder that is not there; the fingerprint of a frame store, None for other datasets.

    Call it before several processes open the same name. A ladder is played into a store of LADDER_STEPS; where it
    was begun before, it goes on.
    """
    if not is_frames(dataset_id):
        return None
    name = DatasetName.parse(dataset_id)
    kind, game = ("", "") if name.namespace else (name.kind, name.world_name)
    if kind == "sample":
        unpack_shipped(rom_name(game))
    elif kind == "ladder":
        folder = frames_root() / dataset_id
        if not (folder / "store.json").is_file():
            ladder(LadderConfig(rom_name(game), steps=LADDER_STEPS, seed=LADDER_SEED))
        found = FrameStore(folder)
        if len(found) < LADDER_STEPS or found.about.get("seed") != LADDER_SEED:
            command = f"{rollout_command(rom_name(game))} --overwrite"
            raise DatasetError(
                f"{folder} holds {len(found):,} transitions of seed {found.about.get('seed')}; results want "
                f"{LADDER_STEPS:,} of seed {LADDER_SEED}: `{command}` builds them"
            )
    return open_frames(dataset_id).fingerprint
