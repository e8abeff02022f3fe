"""A short film of one robot under several target rules, side by side: the same weights, the same start, a small GIF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.evaluate import Evaluation, environment_for, evaluate
from brrcrl_lib.study.figures.atari_film import write_gif
from brrcrl_lib.study.figures.datasets import RENDERERS, render
from brrcrl_lib.training import Run

MAX_BYTES = 1_000_000
FRAMES = 67
"""At most so many pictures, spread evenly over the film."""
MILLISECONDS = 120
"""How long each picture stays."""
PICTURE = {"width": 240, "height": 180}
LABEL_HEIGHT = 46
FONT = ImageFont.truetype(findfont("DejaVu Sans"))
"""Matplotlib's own: Pillow's has no Greek letters."""


NO_DRIVER = (
    "MuJoCo found nothing to draw with here; install EGL (Debian: libegl1) or OSMesa (libosmesa6), "
    f"or name what you have in MUJOCO_GL ({', '.join(RENDERERS)})"
)


class Remembering(gym.Wrapper):
    """An environment that keeps the actions it was given."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.actions = list[list[float]]()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.actions.append(np.asarray(action, float).tolist())
        return self.env.step(action)


@dataclass(frozen=True)
class Take:
    """One episode, played to its end and rendered at some of its steps."""

    rule: str
    played: Evaluation  # of this one episode
    steps: list[int]  # rendered steps, ascending; the last one stays where the episode ended before
    frames: np.ndarray  # [steps, height, width, 3] uint8


def shoot(run: Run, rule: str, act: Any, seed: int, steps: Sequence[int]) -> Take:
    """Play one episode from env.reset(seed=seed), then play its actions again where MuJoCo can draw."""
    try:
        import mujoco  # noqa: F401
    except (ImportError, AttributeError, RuntimeError, OSError):  # MUJOCO_GL names a driver that is not here
        raise KitError(NO_DRIVER) from None
    env = Remembering(environment_for(run.facts)())
    played = evaluate(run.policy(act, seed), lambda: env, episodes=1, seed=seed, discount=run.facts.discount,
                      device=run.method.device)  # fmt: skip
    shown = sorted({min(step, len(env.actions)) for step in steps})
    spec = env.env.spec
    assert spec is not None
    rewards = played.trace["reward"].tolist()[: shown[-1]]
    job = {"env": spec.to_json(), "seed": seed, "steps": shown, "actions": env.actions[: shown[-1]]}
    drawn = render([{**job, "rewards": rewards, "picture": PICTURE}])
    if drawn is None:
        raise KitError(NO_DRIVER)
    if drawn["deviation"].max() > 1e-6:
        raise KitError(
            f"the rendered episode is not the one that was played: rewards differ by {drawn['deviation'].max():.2g}"
        )
    return Take(rule, played, shown, drawn["frames"][0])


def label(take: Take, step: int) -> str:
    """What the rule asks for before a step, and the return so far; an episode that is over stays as it ended."""
    trace = take.played.trace
    earned = trace["reward"].to_numpy()[:step].sum()
    asked = trace["target"].to_numpy()[min(step, len(trace) - 1)]
    return f"asks for {asked:.0f}   return {earned:.0f}" + (", over" if step > len(trace) else "")


def panel(take: Take, step: int) -> np.ndarray:
    """A take at a step [height + LABEL_HEIGHT, width, 3], the rule and its label above the picture."""
    frame = take.frames[np.searchsorted(take.steps, min(step, take.steps[-1]))]
    picture = Image.new("RGB", (frame.shape[1], frame.shape[0] + LABEL_HEIGHT), "white")
    picture.paste(Image.fromarray(frame), (0, LABEL_HEIGHT))
    draw = ImageDraw.Draw(picture)
    draw.text((6, 3), take.rule, fill="black", font=FONT.font_variant(size=15))
    draw.text((6, 25), label(take, step), fill="black", font=FONT.font_variant(size=13))
    return np.asarray(picture)


def moments(steps: int) -> list[int]:
    """The steps that a film of `steps` steps shows: 0, the last one, and others evenly between."""
    return np.unique(np.linspace(0, steps, min(FRAMES, steps + 1)).round().astype(int)).tolist()


def write_film(path: Path, takes: Sequence[Take], steps: Sequence[int], story: str) -> int:
    """Write the takes side by side, at these steps, and what they show in words; returns the size in bytes."""
    screens = np.stack([np.concatenate([panel(take, step) for take in takes], axis=1) for step in steps])
    return write_gif(path, screens, [f"step {step}" for step in steps], MAX_BYTES, MILLISECONDS, story)


def story_of(path: Path) -> str:
    """What a film shows, in words: its alternative text."""
    with Image.open(path) as picture:
        return bytes(picture.info.get("comment", b"")).decode()
