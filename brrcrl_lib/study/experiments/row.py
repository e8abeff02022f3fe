"""The row of results, defined once: what is measured, how it came about, and what a reader of rows may rely on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd

from brrcrl_lib.base.files import git_revision, versions
from brrcrl_lib.evaluate import Evaluation, play
from brrcrl_lib.study.claims.scores import normalised_score
from brrcrl_lib.training import Run
from brrcrl_lib.worlds import world_of


def measure(
    run: Run,
    act: Any,
    *,
    env: str | None = None,
    episodes: int = 10,
    seed: int = 0,
    max_steps: int | None = None,
) -> tuple[dict[str, Any], pd.DataFrame]:
    """One row of results with everything needed to make it again, and the per-step trace."""
    facts = run.facts
    result = play(run, act, env=env, episodes=episodes, seed=seed, max_steps=max_steps)
    env_id = env or facts.env
    summary = result.summary()
    row = {
        "dataset": facts.dataset,
        "env": env_id,
        "method": run.method.name,
        "objective": getattr(run.config, "objective", None),
        "train_seed": run.config.seed,
        "train_steps": run.about["step"],
        "train_seconds": run.about["seconds"],
        **asdict(act),
        **summary,
        **_cut(result, max_steps),
        **_score(str(env_id), summary["return_mean"]),
        "discount": facts.discount,
        "reward_clip": facts.reward_clip,
        "play": facts.play or None,
        "fingerprint": facts.fingerprint,
        "preset": run.about["preset"],
        "versions": versions(),
        "revision": git_revision(),
    }
    return row, result.trace


def _cut(result: Evaluation, max_steps: int | None) -> dict[str, int]:
    """How many episodes were still running at the cap, if there was one: their returns are what they had by then."""
    return {} if max_steps is None else {"max_steps": max_steps, "cut_off": int((result.lengths >= max_steps).sum())}


def _score(env_id: str, mean: float) -> dict[str, Any]:
    """The normalised score, for environments that have a scale."""
    scale = world_of(env_id).reference
    if scale is None:
        return {"score": None, "reference": None}
    return {"score": round(float(normalised_score(env_id, mean)), 3), "reference": scale._asdict()}
