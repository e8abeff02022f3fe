"""Stair climbing: the small world of the paper's Figure 2, exact enough to compute everything in it.

A climber has `budget` steps to reach the top of `height` stairs. `Stairs` holds the rules as a finite MDP, from
which the exact return distributions are computed; `StairClimbing` is the same world as a Gymnasium environment,
registered as "brrcrl/StairClimbing-v0". The paper draws its example without rules; these are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from brrcrl_lib.base.config import did_you_mean

ACTIONS = ("pick", "step", "leap")
PICK, STEP, LEAP = range(3)
BERRIES = ("beside", "on")
MEDIOCRE = (0.4, 0.35, 0.25)
"""The climber who made the data: picks, steps and leaps with these probabilities, whatever the state."""


class State(NamedTuple):
    """What the future depends on: stairs climbed, steps left, and whether the ankle is sprained (0 or 1)."""

    height: int
    left: int
    hurt: int


class Outcome(NamedTuple):
    """One way in which a move can end."""

    probability: float
    state: State
    reward: int


@dataclass(frozen=True)
class Stairs:
    """The rules. Rewards are whole numbers, so that return buckets of width one lose nothing."""

    height: int = 9
    """Stairs up to the top."""
    budget: int = 12
    """Moves in an episode."""
    top_reward: int = 20
    """Reward for reaching the top, which ends the episode."""
    slip_probability: float = 0.25
    """How often a leap ends on the ground with a sprained ankle."""
    berries: str = "beside"
    """`beside` the stairs: `pick` earns 1 and climbing nothing. `on` the stairs: each stair climbed earns 1."""

    def __post_init__(self) -> None:
        if self.berries not in BERRIES:
            raise ValueError(f"berries cannot lie '{self.berries}'{did_you_mean(self.berries, BERRIES)}")
        if not 0 <= self.slip_probability <= 1:
            raise ValueError(f"slip_probability must lie in [0, 1]; got {self.slip_probability}")
        if self.height < 1 or self.top_reward < 0 or self.budget < self.height:
            raise ValueError(
                f"need height >= 1, top_reward >= 0 and budget >= height, so that plain steps can reach the top; "
                f"got height={self.height}, top_reward={self.top_reward}, budget={self.budget}"
            )

    @property
    def start(self) -> State:
        return State(0, self.budget, 0)

    @property
    def first_fatal_slip(self) -> int:
        """The earliest move at which a slip puts the top out of reach (later ones do so too)."""
        return max(0, self.budget - self.height)

    def is_over(self, state: State) -> bool:
        return state.left == 0 or state.height == self.height

    def top_reachable(self, state: State) -> bool:
        """Whether any luck and any actions could still lead to the top."""
        stairs_per_step = 1 if state.hurt else 2
        return state.height + stairs_per_step * state.left >= self.height

    def slipped(self, state: State) -> State:
        """Where a slip ends: on the ground, with a sprained ankle, one step later."""
        return State(0, state.left - 1, 1)

    def outcomes(self, state: State, action: int) -> list[Outcome]:
        """How a move can end, the slip (if any) last. A sprained ankle turns a leap into a step."""
        left, leaping = state.left - 1, action == LEAP and not state.hurt
        if action == PICK:
            return [Outcome(1.0, State(state.height, left, state.hurt), int(self.berries == "beside"))]
        height = min(self.height, state.height + (2 if leaping else 1))
        reward = self.top_reward if height == self.height else 0
        reward += height - state.height if self.berries == "on" else 0
        risk = self.slip_probability if leaping else 0.0
        done = Outcome(1 - risk, State(height, left, state.hurt), reward)
        return [done, Outcome(risk, self.slipped(state), 0)] if risk else [done]


class StairClimbing(gym.Env[np.ndarray, np.int64]):
    """`Stairs` as a Gymnasium environment. Observation: (height, steps left, hurt). Actions: pick, step, leap.

    `reset(options={"slip_at": 4})` makes move number 4 (from 0) a slip, whatever the action.
    Steps left are part of the state, so running out of them terminates an episode and nothing truncates it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, **rules: Any) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode '{render_mode}' does not exist; use rgb_array or None")
        self.render_mode = render_mode
        self.stairs = Stairs(**rules)
        shape = (self.stairs.height + 1, self.stairs.budget + 1, 2)
        self.observation_space = gym.spaces.MultiDiscrete(np.array(shape))
        self.action_space = gym.spaces.Discrete(len(ACTIONS))
        self.state = self.stairs.start
        self.slip_at: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.slip_at = self._checked_slip(options or {})
        self.state = self.stairs.start
        return self._observation(), self._info(slipped=False)

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0 (pick), 1 (step) or 2 (leap); got {action!r}")
        if self.stairs.is_over(self.state):
            raise RuntimeError("the episode is over; call reset() first")
        now = self.stairs.budget - self.state.left
        outcomes = self.stairs.outcomes(self.state, int(action))
        if now == self.slip_at:
            outcomes = [Outcome(0.0, self.state, 0), Outcome(1.0, self.stairs.slipped(self.state), 0)]
        index = self.np_random.choice(len(outcomes), p=[outcome.probability for outcome in outcomes])
        chosen = outcomes[index]
        self.state = chosen.state
        info = self._info(slipped=index == 1)  # a second outcome is always the slip
        return self._observation(), float(chosen.reward), self.stairs.is_over(self.state), False, info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        return draw(self.stairs, self.state) if self.render_mode == "rgb_array" else None

    def _observation(self) -> np.ndarray:
        return np.array(self.state, dtype=np.int64)

    def _info(self, slipped: bool) -> dict[str, Any]:
        return {"slipped": slipped, "top_reachable": self.stairs.top_reachable(self.state)}

    def _checked_slip(self, options: dict[str, Any]) -> int | None:
        for name in options:
            if name != "slip_at":
                raise ValueError(f"unknown reset option '{name}'{did_you_mean(name, ['slip_at'])}")
        slip_at, last = options.get("slip_at"), self.stairs.budget - 1
        if slip_at is not None and (not isinstance(slip_at, int | np.integer) or not 0 <= slip_at <= last):
            raise ValueError(f"slip_at is the number of a move, a whole number from 0 to {last}; got {slip_at!r}")
        return None if slip_at is None else int(slip_at)


gym.register("brrcrl/StairClimbing-v0", entry_point=StairClimbing)


# -- the picture ---------------------------------------------------------------------------------------------------

PALETTE = {
    "sky": (232, 241, 250), "stair": (178, 164, 144), "edge": (120, 106, 88), "climber": (0, 114, 178),
    "hurt": (213, 94, 0), "skin": (240, 200, 160), "flag": (0, 158, 115), "pole": (70, 70, 70), "berry": (190, 40, 90),
    "bush": (112, 150, 84), "left": (86, 180, 233), "used": (205, 213, 221),
}  # fmt: skip
STAIR_WIDTH, STAIR_RISE, GROUND, SKY = 36, 18, 26, 74  # pixels


def draw(stairs: Stairs, state: State) -> np.ndarray:
    """The scene as pixels, uint8 [rows, columns, 3]: steps left as a bar, the climber orange when hurt."""
    rows = SKY + GROUND + stairs.height * STAIR_RISE
    columns = (stairs.height + 1) * STAIR_WIDTH
    picture = np.full((rows, columns, 3), PALETTE["sky"], dtype=np.uint8)

    def box(bottom: int, left: int, height: int, width: int, colour: str) -> None:
        picture[max(0, rows - bottom - height) : rows - bottom, left : left + width] = PALETTE[colour]

    for stair in range(stairs.height + 1):
        box(0, stair * STAIR_WIDTH, GROUND + stair * STAIR_RISE, STAIR_WIDTH, "stair")
        box(GROUND + stair * STAIR_RISE - 3, stair * STAIR_WIDTH, 3, STAIR_WIDTH, "edge")
        if stair < stairs.height and stairs.berries == "on" and stair > 0:
            box(GROUND + stair * STAIR_RISE, stair * STAIR_WIDTH + 25, 7, 7, "berry")  # lying on the stair
        if stair < stairs.height and stairs.berries == "beside":  # in a bush of its own, in reach from the stair
            box(GROUND + stair * STAIR_RISE - 15, stair * STAIR_WIDTH + 22, 12, 12, "bush")
            box(GROUND + stair * STAIR_RISE - 12, stair * STAIR_WIDTH + 25, 6, 6, "berry")
    top = GROUND + stairs.height * STAIR_RISE
    box(top, stairs.height * STAIR_WIDTH + 26, 46, 3, "pole")
    box(top + 30, stairs.height * STAIR_WIDTH + 8, 16, 18, "flag")
    feet, middle = GROUND + state.height * STAIR_RISE, state.height * STAIR_WIDTH + 10
    box(feet, middle, 20, 10, "hurt" if state.hurt else "climber")
    box(feet + 20, middle + 1, 8, 8, "skin")
    for move in range(stairs.budget):
        box(rows - 18, 8 + move * 13, 10, 11, "left" if move < state.left else "used")
    return picture
