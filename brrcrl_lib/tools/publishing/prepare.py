"""`prepare` and `open_prepared`: make of what ships what opening a dataset of games would miss."""

from __future__ import annotations

from typing import Any

from brrcrl_lib.data.atari import rom_name
from brrcrl_lib.data.batch import Source
from brrcrl_lib.data.frame_format import frames_root
from brrcrl_lib.data.frames import is_frames, open_frames
from brrcrl_lib.data.open import LADDER_SEED, LADDER_STEPS, open_source, rollout_command
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing.ladder import LadderConfig, ladder
from brrcrl_lib.tools.publishing.samples import unpack_shipped
from brrcrl_lib.worlds import DatasetName


def open_prepared(dataset_id: str, **options: Any) -> Source:
    """`open_source`, after unpacking a sample that is not there; ladders, a gigabyte each, wait for `prepare`."""
    if _shipped(dataset_id)[0] == "sample":
        prepare(dataset_id)
    return open_source(dataset_id, **options)


def prepare(dataset_id: str) -> str | None:
    """Unpack a sample or play a ladder that is not there; the fingerprint of a frame store, None for other datasets.

    Call it before several processes open the same name. A ladder is played into a store of LADDER_STEPS; where it
    was begun before, it goes on.
    """
    if not is_frames(dataset_id):
        return None
    kind, game = _shipped(dataset_id)
    if kind == "sample":
        unpack_shipped(rom_name(game))
    if kind == "ladder" and not (frames_root() / dataset_id / "store.json").is_file():
        ladder(LadderConfig(rom_name(game), steps=LADDER_STEPS, seed=LADDER_SEED))
    store = open_frames(dataset_id)
    if kind == "ladder" and (len(store) < LADDER_STEPS or store.about.get("seed") != LADDER_SEED):
        raise DatasetError(
            f"{store.folder} holds {len(store):,} transitions of seed {store.about.get('seed')}; results want "
            f"{LADDER_STEPS:,} of seed {LADDER_SEED}: `{rollout_command(rom_name(game))} --overwrite` builds them"
        )
    return store.fingerprint


def _shipped(dataset_id: str) -> tuple[str, str]:
    """Kind (ladder, sample) and game of a dataset that can be made of what ships."""
    name = DatasetName.parse(dataset_id)
    return ("", "") if name.namespace else (name.kind, name.world_name)
