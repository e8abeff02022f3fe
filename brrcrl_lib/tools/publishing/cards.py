"""Dataset cards: what was measured about a dataset, and nothing that was not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brrcrl_lib.base.files import atomic_path, git_revision, versions
from brrcrl_lib.base.limits import RECORD, TEXT, check_fields, whole
from brrcrl_lib.base.settings import check_settings, number
from brrcrl_lib.data.registry import DatasetError, data_root, list_datasets, read_metadata
from brrcrl_lib.data.storage import FlatEpisodes
from brrcrl_lib.study.analysis.d4rl_facts import d4rl_facts, with_score
from brrcrl_lib.tools.agents.episodes import MANTISSA_BITS
from brrcrl_lib.tools.publishing.game_cards import games_table, ladders_table

BEGIN, END = "<!-- dataset cards: written by `brrcrl data publish` -->", "<!-- end of dataset cards -->"
GAMES_BEGIN, GAMES_END = "<!-- cards of games: written by `brrcrl data cards` -->", "<!-- end of cards of games -->"


SHOWN = {
    "transitions": whole(0),
    "episodes": whole(0),
    "return_mean": number(),
    "return_std": number(),
    "return_max": number(),
}
SHOWN_IF_THERE = {"env": TEXT, "policy": RECORD, "share_of_expert": number()}


@dataclass(frozen=True)
class CardsConfig:
    """Write the tables of data/README.md again, from the cards that lie beside the data."""

    root: Path | None = None
    """Folder of Minari datasets; by default MINARI_DATASETS_PATH or data/minari."""


def cards(config: CardsConfig) -> Path:
    """The command: like `write_cards`."""
    check_settings(config)
    return write_cards(config.root)


def episode_statistics(pieces: Iterable[FlatEpisodes]) -> dict[str, Any]:
    """Counts and the (undiscounted) return distribution of the episodes in `pieces`."""
    lengths, returns, terminated = [], [], []
    for flat in pieces:
        lengths.append(flat.lengths)
        returns.append(np.add.reduceat(flat.rewards, flat.starts, dtype=np.float64))
        terminated.append(flat.terminations[flat.starts + flat.lengths - 1])
    every = np.concatenate(returns)
    return {
        "episodes": len(every),
        "transitions": int(np.concatenate(lengths).sum()),
        "length_mean": round(float(np.concatenate(lengths).mean()), 1),
        "return_mean": round(float(every.mean()), 1),
        "return_std": round(float(every.std()), 1),
        "return_min": round(float(every.min()), 1),
        "return_max": round(float(every.max()), 1),
        "terminated_share": round(float(np.concatenate(terminated).mean()), 3),
    }


def provenance() -> dict[str, Any]:
    """Under which versions a dataset was written, how it was rounded and what one may do with it."""
    return {
        "versions": versions(),
        "revision": git_revision(),
        "mantissa_bits": MANTISSA_BITS,
        "licence": "CC-BY-4.0",
    }


def cards_table(root: Path | str | None = None) -> str:
    """A Markdown table of the kit's own datasets under `root`."""
    base = data_root(root)
    rows = [
        "| dataset | environment | transitions | episodes | return of its episodes, mean ± std (max) "
        "| its policy, mean action, ten fresh episodes | share of the expert | MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dataset_id in list_datasets(base):
        folder = base / dataset_id / "data"
        metadata = read_metadata(folder)
        card = metadata.get("card")
        if not card or "return_mean" not in card:
            continue
        check_fields(card, f"the card of {dataset_id}", SHOWN, SHOWN_IF_THERE, DatasetError)
        policy, share = card.get("policy") or {}, card.get("share_of_expert")
        fresh = policy.get("fresh_return_mean")
        if fresh is not None:
            measured = {"fresh_return_mean": number(), "fresh_return_std": number()}
            check_fields(policy, f"the policy on the card of {dataset_id}", measured, None, DatasetError)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        rows.append(
            f"| `{dataset_id}` | {card.get('env', '')} | {card['transitions']:,} | {card['episodes']:,} "
            f"| {card['return_mean']:,.0f} ± {card['return_std']:,.0f} ({card['return_max']:,.0f}) "
            f"| {'' if fresh is None else format(fresh, ',.0f') + ' ± ' + format(policy['fresh_return_std'], ',.0f')} "
            f"| {'' if share is None else format(share, '.2f')} | {size:.1f} |"
        )
    return "\n".join(rows)


def d4rl_table(root: Path | str | None = None) -> str:
    """A Markdown table of the kit's own datasets beside their counterparts in D4RL v2."""
    base = data_root(root)
    rows = [
        "| dataset | transitions | mean return (score) | best return (score) "
        "| D4RL v2's: transitions | mean return (score) | best return (score) |",
        "|---|---|---|---|---|---|---|",
    ]
    for dataset_id in list_datasets(base):
        card, theirs = read_metadata(base / dataset_id / "data").get("card") or {}, d4rl_facts(dataset_id)
        if theirs is None or "return_mean" not in card:
            continue
        counts = [(card["transitions"], card["return_mean"], card["return_max"])]
        counts += [(theirs.transitions, theirs.return_mean, theirs.return_max)]
        cells = [
            f"{count:,} | {with_score(dataset_id, mean)} | {with_score(dataset_id, best)}"
            for count, mean, best in counts
        ]
        rows.append(f"| `{dataset_id}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def write_cards(root: Path | str | None = None) -> Path:
    """Put the tables into data/README.md (beside data/minari), each between two marks; the rest of the file stays.

    The tables of games come in only where there are games.
    """
    base = data_root(root)
    if not base.is_dir():
        raise DatasetError(f"{base} is no folder of datasets; name another with --root")
    readme = base.parent / "README.md"
    text = readme.read_text() if readme.exists() else "# Data\n"
    text = _between(text, BEGIN, END, f"{cards_table(root)}\n\n{d4rl_table(root)}")
    if list(readme.parent.glob("policies/atari/*/ladder.json")):
        tables = f"{ladders_table(readme.parent)}\n\n{games_table(readme.parent)}"
        text = _between(text, GAMES_BEGIN, GAMES_END, tables)
    with atomic_path(readme) as temporary:
        temporary.write_text(text)
    return readme


def _between(text: str, begin: str, end: str, content: str) -> str:
    """`text` with `content` between the two marks, which are put at its end if it lacks them."""
    if begin in text and end in text:
        before, rest = text.split(begin, 1)
        after = rest.split(end, 1)[1]
    else:
        before, after = text.rstrip("\n") + "\n\n", "\n"
    return f"{before}{begin}\n\n{content}\n\n{end}{after}"
