"""`brrcrl data rollout --ladder pong`: all policies of a game, from untrained to best, fill a frame store.

The policies share the steps equally. Games are played in blocks of one policy each; a block depends on what is
already stored and on the seed, and on nothing else, so a killed run ends with the same bytes as another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.files import ROOT, git_revision, settle_below, sha256, versions, write_json
from brrcrl_lib.base.settings import Count, Envs, Names, Seed, check_settings
from brrcrl_lib.data.atari import AtariConfig, AtariEnv, env_id, rom_name
from brrcrl_lib.data.frame_format import frames_root
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError, nearest
from brrcrl_lib.tools.agents.atari import AtariActor
from brrcrl_lib.tools.agents.play_atari import play_games
from brrcrl_lib.tools.publishing.folders import check_replaceable
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter
from brrcrl_lib.tools.publishing.game_cards import card_text, make_card

FIRST_GAME_SEED = 2_000_000_000
"""Games of a ladder start from here, apart from the seeds of training and of measuring."""


@dataclass(frozen=True)
class LadderConfig:
    """Play all policies of a game, from untrained to best, into a frame store."""

    ladder: str
    """The game, for example pong, or a folder of policies."""
    steps: Count = 200_000
    """Transitions to record; the last games are kept whole."""
    seed: Seed = 0
    """Choose another number for other games of the same policies."""
    name: Names | None = None
    """Name of the store; by default ladder/pong for pong."""
    num_envs: Annotated[Envs, tyro.conf.arg(aliases=["--lanes"])] = 8
    """Games played side by side."""
    sticky_actions: bool = False
    """Each screen repeats the previous action with probability 0.25."""
    clip_rewards: bool = False
    """Store -1, 0 or 1; a store with the rewards as paid can still be opened with clipped ones."""
    max_frames: Count = 108_000
    """Screens, four per step, after which a game is cut off."""
    root: Path | None = None
    """Folder of frame stores; by default BRRCRL_FRAMES_PATH or runs/frames."""
    overwrite: bool = False
    """Replace a store of the same name."""


@dataclass(frozen=True)
class LadderReport:
    """A finished store and its card."""

    path: Path
    card: str

    def __str__(self) -> str:
        return f"{self.path}\n{self.card}"


def ladder_folder(game: str) -> Path:
    """Where the policies of a game lie: data/policies/atari/pong, or `game` itself if it is a folder."""
    base = ROOT / "data" / "policies" / "atari"
    settle_below(base)
    for folder in (base / game, Path(game)):
        if folder.is_dir():
            return folder
    name = rom_name(game)
    if (base / name).is_dir():
        return base / name
    here = sorted(path.name for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    near = nearest(name, here)
    hint = f"; did you mean '{near}'?" if near else f" (there are: {', '.join(here)})" if here else ""
    command = f"brrcrl data collect --env {env_id(name)} --algorithm ppo --out runs/collect/{name} --publish-as {name}"
    raise DatasetError(f"no policies of {game} in {base}{hint}; {command} trains some")


def load_ladder(folder: Path) -> list[tuple[Path, AtariActor]]:
    """The policies of a folder, in the order of their names, all of the same game."""
    checkpoints = [(file, AtariActor.load(file)) for file in sorted(folder.glob("*.safetensors"))]
    if not checkpoints:
        raise DatasetError(f"no policies (*.safetensors) in {folder}")
    games = {actor.about.get("env") for _, actor in checkpoints}
    if len(games) > 1 or None in games:
        raise DatasetError(f"the policies in {folder} do not name one game; they name {sorted(map(str, games))}")
    return checkpoints


def ladder(config: LadderConfig) -> LadderReport:
    """Run or continue a rollout of all policies; the finished store has a card.json and a card.txt."""
    check_settings(config)
    folder = ladder_folder(config.ladder)
    checkpoints = load_ladder(folder)
    game = checkpoints[0][1].about["env"]
    target = frames_root(config.root) / (config.name or f"ladder/{rom_name(game)}")
    check_replaceable(target, "store.json", config.overwrite)
    play = AtariConfig(
        sticky_actions=config.sticky_actions, clip_rewards=config.clip_rewards, max_frames=config.max_frames
    )
    first = AtariEnv(game, play)
    wrong = [file.name for file, actor in checkpoints if actor.actions != first.action_space.n]
    if wrong:
        raise DatasetError(f"{game} has {first.action_space.n} actions; {', '.join(wrong)} in {folder} have others")
    torch.set_num_threads(1)
    num_envs = min(config.num_envs, max(1, config.steps // (250 * len(checkpoints))))
    about = {
        "env": game,
        "kind": "ladder",
        "action_count": len(first.buttons),
        "action_meanings": first.meanings,
        **play.describe(),
        "seed": config.seed,
        "first_game_seed": FIRST_GAME_SEED + 1_000_000 * config.seed,
        "lanes": num_envs,
        "steps_wanted": config.steps,
        "policies": [{"file": file.name, "sha256": sha256(file), **actor.about} for file, actor in checkpoints],
    }
    with FrameWriter(target, about, overwrite=config.overwrite) as writer:
        envs = [first, *(AtariEnv(game, play) for _ in range(num_envs - 1))]
        _fill(writer, [actor for _, actor in checkpoints], envs, config)
        writer.drop_open()
        writer.commit(**writer.progress)
        card = make_card(FrameStore(writer.folder))
        write_json(writer.folder / "card.json", card)
        text = card_text(card)
        (writer.folder / "card.txt").write_text(text)
        writer.finish(versions=versions(), revision=git_revision(), licence="CC-BY-4.0")
    return LadderReport(target, text)


def _fill(writer: FrameWriter, actors: list[AtariActor], envs: list[AtariEnv], config: LadderConfig) -> None:
    """Play blocks until every policy has its share."""
    share = math.ceil(config.steps / len(actors))
    steps = np.array(writer.progress.get("steps", [0] * len(actors)))
    games = np.array(writer.progress.get("games", [0] * len(actors)))
    bar = track(total=config.steps, initial=int(steps.sum()), unit="step", desc=envs[0].game)
    while (steps < share).any():
        policy = int(np.argmin(steps))
        if games[policy]:  # how long its games are is known
            count = min(2 * len(envs), math.ceil((share - steps[policy]) * games[policy] / steps[policy]))
        else:
            count = max(1, len(envs) // 2)
        first = FIRST_GAME_SEED + 1_000_000 * config.seed + int(games.sum())
        for game in play_games(actors[policy], envs, range(first, first + count), on_step=bar.update):
            game.append_to(writer, policy)
            steps[policy] += len(game)
            games[policy] += 1
        writer.commit(steps=steps.tolist(), games=games.tolist())
    bar.close()
