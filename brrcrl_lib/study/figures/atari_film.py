"""A short film of an agent at play: the game's own colours, what it asks for underneath, a small GIF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw

from brrcrl_lib.base.files import atomic_path
from brrcrl_lib.data.atari import AtariEnv
from brrcrl_lib.evaluate import Evaluation, environment_for, evaluate
from brrcrl_lib.training import Run

MAX_BYTES = 500_000
STEP_MILLISECONDS = 67
"""Four screens at 60 a second: a film at the speed of the game."""
CAPTION_HEIGHT = 14


class Filmed(gym.Wrapper):
    """An Atari game that keeps its screens [height, width, 3], one per step, and one more from the start."""

    def __init__(self, env: AtariEnv) -> None:
        super().__init__(env)
        self.ale, self.screens = env.ale, list[np.ndarray]()

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**options)
        self.screens = [self.ale.getScreenRGB()]
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self.screens.append(self.ale.getScreenRGB())
        return result


@dataclass(frozen=True)
class Film:
    """One game as it was played."""

    screens: np.ndarray  # [steps, height, width, 3] uint8: what the agent saw before each step
    played: Evaluation  # of this one game


def play_game(run: Run, act: Any, seed: int, max_steps: int, film: bool = True) -> Film:
    """Play one game with a trained model on the device where it lies, under the flags of its data."""
    env = environment_for(run.facts)()
    assert isinstance(env, AtariEnv)
    filmed: gym.Env = Filmed(env) if film else env
    played = evaluate(
        run.policy(act, seed),
        lambda: filmed,
        episodes=1,
        seed=seed,
        discount=run.facts.discount,
        device=run.method.device,
        max_steps=max_steps,
        reward_clip=run.facts.reward_clip,
    )
    screens = filmed.screens[:-1] if isinstance(filmed, Filmed) else []
    return Film(np.stack(screens) if screens else np.empty((0, 210, 160, 3), np.uint8), played)


def best_stretch(rewards: Any, length: int) -> slice:
    """The stretch of `length` steps in which a game [steps] paid most; of several, the first."""
    total = np.concatenate([[0.0], np.cumsum(np.asarray(rewards, dtype=np.float64))])
    length = min(length, len(total) - 1)
    first = int(np.argmax(total[length:] - total[: len(total) - length]))
    return slice(first, first + length)


def captions(film: Film) -> list[str]:
    """What the agent asks for and what it has earned so far, one line per step."""
    trace = film.played.trace
    earned = trace["reward"].cumsum() - trace["reward"]
    target = trace["target"] if "target" in trace else [float("nan")] * len(trace)
    return [f"asks for {asked:5.2f}   score {score:4.0f}" for asked, score in zip(target, earned, strict=True)]


def write_gif(
    path: Path,
    screens: np.ndarray,
    texts: Sequence[str],
    max_bytes: int = MAX_BYTES,
    milliseconds: int = STEP_MILLISECONDS,
    comment: str = "",
) -> int:
    """Write screens [n, height, width, 3] with a line of text under each; returns the size in bytes.

    Each screen stays for `milliseconds`, and the file keeps `comment`. Games use few colours, so one palette keeps them
    all. If the file comes out too large, every other screen goes, and the rest stay twice as long.
    """
    if len(screens) != len(texts) or not len(screens):
        raise ValueError(f"a film needs one text per screen; got {len(screens)} screens and {len(texts)} texts")
    pictures = [_captioned(screen, text) for screen, text in zip(screens, texts, strict=True)]
    few = pictures[:: max(1, len(pictures) // 8)]
    palette = Image.fromarray(np.concatenate([np.asarray(picture) for picture in few])).quantize(64)
    indexed = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    every = 1
    while len(content := _encode(indexed[::every], milliseconds * every, comment)) > max_bytes:
        if every >= len(indexed):
            raise ValueError(f"even one screen takes {len(content):,} bytes; allow more than {max_bytes:,}")
        every *= 2
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
    return len(content)


def _encode(pictures: list[Image.Image], milliseconds: int, comment: str) -> bytes:
    buffer = io.BytesIO()
    pictures[0].save(buffer, format="GIF", save_all=True, append_images=pictures[1:], loop=0, optimize=True,
                     duration=milliseconds, comment=comment.encode())  # fmt: skip
    return buffer.getvalue()


def _captioned(screen: np.ndarray, text: str) -> Image.Image:
    height, width = screen.shape[:2]
    picture = Image.new("RGB", (width, height + CAPTION_HEIGHT), "white")
    picture.paste(Image.fromarray(screen), (0, 0))
    ImageDraw.Draw(picture).text((4, height + 1), text, fill="black")
    return picture
