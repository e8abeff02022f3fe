"""An Atari game as the literature plays it: four frames per action, 84x84 grey pixels, the last four as observation.

    frame skip 4; each frame is the pixelwise maximum of the last two screens (sprites flicker)
    1 to 30 no-ops at the start, then FIRE where the game has that button
    a lost life is reported, and the game goes on
    sticky actions (each screen repeats the previous action with probability 0.25) and clipped rewards are choices

Everything random in a game comes from the seed of its `reset`, so a game can be played again anywhere.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import cache
from math import gcd
from typing import Annotated, Any

import gymnasium as gym
import numpy as np

from brrcrl_lib.base.limits import whole
from brrcrl_lib.base.settings import Count
from brrcrl_lib.data.frame_format import SHAPE, STACK
from brrcrl_lib.data.registry import DatasetError, nearest
from brrcrl_lib.worlds import GAMES

STICKINESS = 0.25


@dataclass(frozen=True)
class AtariConfig:
    """How a game is presented; recorded with everything that is played under it."""

    frame_skip: Count = 4
    """Screens per action."""
    noop_max: Annotated[int, whole(0)] = 30
    """A game starts after 1 to this many screens without action; 0 for none."""
    fire_on_reset: bool = True
    """Press FIRE once at the start of a game that has it."""
    sticky_actions: bool = False
    """Each screen repeats the previous action with probability 0.25."""
    clip_rewards: bool = False
    """Rewards become -1, 0 or 1."""
    max_frames: Count = 108_000
    """Screens after which a game is cut off: half an hour of play."""

    def describe(self) -> dict[str, Any]:
        """What the metadata of stores and policies say."""
        return asdict(self)


def rom_name(env: str) -> str:
    """ALE's name of the game: ALE/MsPacman-v5, MsPacman and ms_pacman are all ms_pacman."""
    from ale_py import roms

    known = set(roms.get_all_rom_ids())
    bare = re.sub(r"(^ALE/)|(-v\d+$)", "", env)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower()
    for name in (snake, bare.lower(), snake.replace("_", "")):
        if name in known:
            return name
    near = nearest(snake, sorted(known))
    raise DatasetError(f"no Atari game '{env}'" + (f"; did you mean '{near}'?" if near else f"; try {GAMES[0]}"))


def env_id(env: str) -> str:
    """Gymnasium's id of a game: pong becomes ALE/Pong-v5."""
    return "ALE/" + "".join(word.capitalize() for word in rom_name(env).split("_")) + "-v5"


@cache
def _weights(source: int, target: int) -> np.ndarray:
    """How much of each source pixel lies in each target pixel, [target, source], in whole numbers."""
    unit = gcd(source, target)
    wide, narrow = source // unit, target // unit
    low = np.maximum(np.arange(target)[:, None] * wide, np.arange(source)[None] * narrow)
    high = np.minimum((np.arange(target)[:, None] + 1) * wide, (np.arange(source)[None] + 1) * narrow)
    return np.maximum(high - low, 0).astype(np.float32)


def shrink(screen: np.ndarray) -> np.ndarray:
    """Area average of a grey screen [height, width] as uint8 [84, 84].

    The weights are whole numbers and all sums stay below 2**24, so float32 is exact and every CPU gives the same.
    """
    rows, columns = (_weights(size, goal) for size, goal in zip(screen.shape, SHAPE, strict=True))
    total = rows[0].sum() * columns[0].sum()
    if screen.shape[0] == 210:  # five rows make two
        five = screen.reshape(42, 5, -1).astype(np.float32)
        first = 2 * (five[:, 0] + five[:, 1]) + five[:, 2]
        second = five[:, 2] + 2 * (five[:, 3] + five[:, 4])
        tall = np.stack([first, second], 1).reshape(SHAPE[0], -1)
    else:
        tall = rows @ screen.astype(np.float32)
    return ((tall @ columns.T + total / 2) / total).astype(np.uint8)  # rounds half up


class AtariEnv(gym.Env):
    """Observations are stacks [4, 84, 84] uint8, oldest frame first, black before the game began."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, env: str, config: AtariConfig | None = None) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        self.config = config or AtariConfig()
        self.game = rom_name(env)
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale = ALEInterface()
        self.ale.setInt("random_seed", 0)
        self.ale.setFloat("repeat_action_probability", 0.0)  # stickiness is ours, from the seed of the game
        rom = roms.get_rom_path(self.game)
        assert rom is not None  # rom_name knows only games that are there
        self.ale.loadROM(rom)
        self.buttons = self.ale.getMinimalActionSet()
        self.meanings = [button.name for button in self.buttons]
        self._switched_on = self.ale.cloneState()
        self._screens = np.zeros((2, *self.ale.getScreenDims()), np.uint8)
        self.stack = np.zeros((STACK, *SHAPE), np.uint8)
        self.observation_space = gym.spaces.Box(0, 255, (STACK, *SHAPE), np.uint8)
        self.action_space: gym.spaces.Discrete = gym.spaces.Discrete(len(self.buttons))
        self._rng = np.random.default_rng(0)
        self._frames = self._lives = self._previous = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        waits = int(self._rng.integers(1, self.config.noop_max + 1)) if self.config.noop_max else 0
        self._switch_on()
        for _ in range(waits):
            self.ale.act(self.buttons[0])
            if self.ale.game_over():
                self._switch_on()
        if self.config.fire_on_reset and "FIRE" in self.meanings:
            for _ in range(self.config.frame_skip):
                self.ale.act(self.buttons[self.meanings.index("FIRE")])
            if self.ale.game_over():
                self._switch_on()
        self._lives = self.ale.lives()
        self.ale.getScreenGrayscale(self._screens[0])
        self.stack[:] = 0
        self.stack[-1] = shrink(self._screens[0])
        return self.stack.copy(), {"lives": self._lives}

    def _switch_on(self) -> None:
        """Like `reset_game`, which keeps a byte of some games' memory: the state of a machine just switched on."""
        self.ale.reset_game()
        self.ale.restoreState(self._switched_on)
        self._frames = self._previous = 0

    def step(self, action: int | np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """`info` has `life_lost`, `lives` and the `score` of this step, which is the reward before clipping."""
        score, skip = self._act(int(action)), self.config.frame_skip
        screen = self._screens[0] if skip == 1 else np.maximum(self._screens[0], self._screens[1])
        self.stack[:-1] = self.stack[1:]
        self.stack[-1] = shrink(screen)
        lives, over = self.ale.lives(), self.ale.game_over()
        life_lost, self._lives = lives < self._lives, lives
        reward = float(np.sign(score)) if self.config.clip_rewards else score
        truncated = self._frames >= self.config.max_frames and not over
        return self.stack.copy(), reward, over, truncated, {"life_lost": life_lost, "lives": lives, "score": score}

    def _act(self, action: int) -> float:
        """Hold a button for some screens; the last two stay in `_screens`. Returns what the game paid."""
        skip, score = self.config.frame_skip, 0.0
        repeats = self._rng.random(skip) < STICKINESS if self.config.sticky_actions else None
        for screen in range(skip):
            if repeats is None or not repeats[screen]:
                self._previous = action
            score += self.ale.act(self.buttons[self._previous])
            self._frames += 1
            if screen >= skip - 2:
                self.ale.getScreenGrayscale(self._screens[skip - 1 - screen])
            if self.ale.game_over():
                self.ale.getScreenGrayscale(self._screens[0])
                self._screens[1] = self._screens[0]
                break
        return score

    @property
    def frame(self) -> np.ndarray:
        """The newest frame [84, 84]; a view."""
        return self.stack[-1]
