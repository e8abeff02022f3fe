"""Dataset cards: what was measured about a dataset, and nothing that was not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from brrcrl_lib.datasets.episodes import MANTISSA_BITS
from brrcrl_lib.datasets.registry import data_root, list_datasets, read_metadata
from brrcrl_lib.datasets.storage import FlatEpisodes
from brrcrl_lib.runs import atomic_path, git_revision, versions

BEGIN, END = "<!-- dataset cards: written by `brrcrl data publish` -->", "<!-- end of dataset cards -->"


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
        policy, share = card.get("policy", {}), card.get("share_of_expert")
        fresh = policy.get("fresh_return_mean")
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        rows.append(
            f"| `{dataset_id}` | {card.get('env', '')} | {card['transitions']:,} | {card['episodes']:,} "
            f"| {card['return_mean']:,.0f} ± {card['return_std']:,.0f} ({card['return_max']:,.0f}) "
            f"| {'' if fresh is None else format(fresh, ',.0f') + ' ± ' + format(policy['fresh_return_std'], ',.0f')} "
            f"| {'' if share is None else format(share, '.2f')} | {size:.1f} |"
        )
    return "\n".join(rows)


def write_cards(root: Path | str | None = None, readme: Path | None = None) -> Path:
    """Put the table into data/README.md (beside data/minari), between two marks; the rest of the file stays."""
    readme = readme or data_root(root).parent / "README.md"
    text = readme.read_text() if readme.exists() else "# Data\n"
    if BEGIN in text and END in text:
        before, rest = text.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
    else:
        before, after = text.rstrip("\n") + "\n\n", "\n"
    with atomic_path(readme) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n\n{cards_table(root)}\n\n{END}{after}")
    return readme
