"""Cards of games: what a frame store and a sample of it hold, and what the policies of a ladder earned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brrcrl_lib.base.files import git_revision, versions
from brrcrl_lib.base.limits import RECORD, check_fields, each, read_json, whole
from brrcrl_lib.base.settings import number
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.worlds import GAMES, world_of

SHOWN = ("env", "seed", "first_game_seed", "lanes", "sticky_actions", "clip_rewards", "frame_skip", "noop_max",
         "fire_on_reset")  # fmt: skip
"""What a card takes over from the store: how the games were played."""


LADDER = {"policies": each(RECORD), "bytes": whole(0)}
POLICY = {
    "step": whole(0),
    "fresh_return_mean": number(),
    "fresh_return_std": number(),
    "fresh_games": whole(0),
}
POINTS = ("min", "p10", "median", "p90", "max")
CARD = {
    "transitions": whole(0),
    "games": whole(0),
    "return_mean": number(),
    "return_std": number(),
    **{f"return_{point}": number() for point in POINTS},
}
"""What the tables take from ladder.json and from the card of a sample."""


def make_card(store: FrameStore, games: Sequence[int] | None = None) -> dict[str, Any]:
    """What is in a store, or in these games of it: returns of all and of each policy's."""
    chosen = np.arange(store.episodes) if games is None else np.asarray(games)
    lengths, returns, policies = store.lengths[chosen], store.returns[chosen], store.policies[chosen]
    ends = store.starts[chosen] + lengths - 1
    before = np.concatenate([[0], np.cumsum(store.life_lost())])
    lives = before[ends + 1] - before[store.starts[chosen]]
    rows = []
    for index, policy in enumerate(store.about.get("policies", [])):
        mine = policies == index
        if mine.any():
            rows.append({**policy, **_distribution(returns[mine]), "transitions": int(lengths[mine].sum())})
    return {
        **{key: store.about[key] for key in SHOWN if key in store.about},
        "transitions": int(lengths.sum()),
        **_distribution(returns),
        "length_mean": round(float(lengths.mean()), 1),
        "lives_lost": int(lives.sum()),
        "cut_off_by_the_clock": int(store.truncated()[ends].sum()),
        "policies": rows,
        "versions": versions(),
        "revision": git_revision(),
        "licence": "CC-BY-4.0",
    }


def _distribution(returns: np.ndarray) -> dict[str, Any]:
    """Counts and spread of `returns` [games]."""
    points = {"min": 0, "p10": 10, "median": 50, "p90": 90, "max": 100}
    spread = {f"return_{name}": round(float(np.percentile(returns, share)), 1) for name, share in points.items()}
    mean, std = round(float(returns.mean()), 2), round(float(returns.std()), 2)
    return {"games": len(returns), "return_mean": mean, "return_std": std, **spread}


def card_text(card: dict[str, Any]) -> str:
    """The card for reading."""
    lines = [
        f"{card['env']}: {card['transitions']:,} transitions in {card['games']:,} games ({_flags(card)})",
        f"return {card['return_mean']} ± {card['return_std']}; min {card['return_min']}, 10% {card['return_p10']}, "
        f"median {card['return_median']}, 90% {card['return_p90']}, max {card['return_max']}",
        f"lives lost {card['lives_lost']:,}, games cut off by the clock {card['cut_off_by_the_clock']:,}",
        "",
        f"{'policy':<28} {'trained':>10} {'games':>6} {'steps':>9} {'return':>9} {'±':>8} {'max':>8}",
    ]
    for row in card["policies"]:
        lines.append(
            f"{row['file']:<28} {row.get('step', 0):>10,} {row['games']:>6,} {row['transitions']:>9,} "
            f"{row['return_mean']:>9.1f} {row['return_std']:>8.1f} {row['return_max']:>8.0f}"
        )
    return "\n".join(lines) + "\n"


def _flags(card: dict[str, Any]) -> str:
    """How the games were played."""
    sticky, clipped = (
        "on" if card.get("sticky_actions") else "off",
        "clipped" if card.get("clip_rewards") else "as paid",
    )
    return f"sticky actions {sticky}, rewards {clipped}, seed {card.get('seed', 'unknown')}"


def ladders_table(data: Path) -> str:
    """A Markdown table of the ladders below `data`: how long each was trained, and what it earned."""
    rows = [
        "| game | policies | trained for at most | untrained, then best, mean ± std of fresh games | goal | MB |",
        "|---|---|---|---|---|---|",
    ]
    for file in _in_order(data.glob("policies/atari/*/ladder.json"), lambda path: path.parent.name):
        game, card = file.parent.name, read_json(file, LADDER, None, DatasetError)
        for row in card["policies"]:
            check_fields(row, f"{file} (policies)", POLICY, None, DatasetError)
        if not card["policies"]:
            raise DatasetError(f"{file} names no policies; publish the ladder again")
        first, best = card["policies"][0], max(card["policies"], key=lambda row: row["fresh_return_mean"])
        earned = " to ".join(
            f"{row['fresh_return_mean']:,.1f} ± {row['fresh_return_std']:,.1f}" for row in (first, best)
        )
        last = max(row["step"] for row in card["policies"])
        rows.append(
            f"| {game} | {len(card['policies'])} | {last:,} steps | {earned} ({best['fresh_games']} games each) "
            f"| {_goal(game, best['fresh_return_mean'])} | {card['bytes'] / 1e6:.1f} |"
        )
    return "\n".join(rows)


def _goal(game: str, reached: float) -> str:
    goal = world_of(game).ladder_goal
    return "" if goal is None else f"above {goal:,.0f}: {'reached' if reached > goal else 'not reached'}"


def games_table(data: Path) -> str:
    """A Markdown table of the stores that results are recorded on, and of the samples of them that ship."""
    rows = [
        "| data | transitions | games | return, mean ± std | min, 10%, median, 90%, max | played |",
        "|---|---|---|---|---|---|",
    ]
    for file in _in_order(data.glob("atari/*.json"), lambda path: path.stem):
        cards = read_json(file, {"store": RECORD, "sample": RECORD}, None, DatasetError)
        for name, card in {f"ladder/{file.stem}": cards["store"], f"sample/{file.stem}": cards["sample"]}.items():
            check_fields(card, f"{file} ({name})", CARD, None, DatasetError)
            spread = ", ".join(f"{card[f'return_{point}']:,.0f}" for point in POINTS)
            rows.append(
                f"| `{name}` | {card['transitions']:,} | {card['games']:,} "
                f"| {card['return_mean']:,.1f} ± {card['return_std']:,.1f} | {spread} | {_flags(card)} |"
            )
    return "\n".join(rows)


def _in_order(files: Iterable[Path], game: Callable[[Path], str]) -> list[Path]:
    """The paper's games first, in its order."""
    place = {name: number for number, name in enumerate(GAMES)}
    return sorted(files, key=lambda path: (place.get(game(path), len(place)), game(path)))
