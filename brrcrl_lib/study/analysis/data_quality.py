"""What a dataset is good for, in one look: whether a claim about asking for high returns can be tested on it.

A reward-conditioned agent is asked for a discounted return (RTG) and scored by the undiscounted return of its
episode. It can answer only if many episodes show high returns, and if the two returns go together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.study.analysis.d4rl_facts import d4rl_facts, with_score
from brrcrl_lib.worlds import world_of

BLOCKS = 10
JUNK = 0.1
"""An episode is junk if it earns less than this share of the expert's return."""
TOP = 0.1

FEWEST_TOP_EPISODES = 20
"""RTG labels within an episode are nearly copies of each other, so episodes are what is counted: with fewer, a model
learns these very trajectories by heart, and a split for validation leaves two or three."""
MOST_JUNK = 0.8
"""With more, what the data do on average earns nearly nothing, and Theorem 1 lets the policy leave them by -log delta
nats at most: 1.6 are needed to pick one episode in five, 2.3 are allowed at delta = 0.1."""
LEAST_CORRELATION = 0.9
"""Below, about a fifth of the variance of scores (1 - 0.9^2) or more has nothing to do with what is asked for."""
FEWEST_EFFECTIVE = 50
"""With fewer, a decile is less than five episodes, and quantiles of returns are single trajectories."""


class Block(NamedTuple):
    """Consecutive episodes in the order of collection."""

    episodes: int
    mean: float
    best: float


@dataclass(frozen=True)
class Quality:
    """One dataset measured. Returns are undiscounted unless they are called RTG."""

    id: str
    discount: float
    steps: int
    episodes: int
    expert_return: float
    blocks: tuple[Block, ...]  # at most ten, equal in episodes up to one
    junk_episodes: float  # share of the episodes
    junk_steps: float  # share of the steps that lie in them
    top_step_episodes: int  # that hold the tenth of all steps with the highest RTG
    top_value_episodes: int  # that reach the highest tenth of the range of RTG, where Max asks
    effective_episodes: float  # (sum of lengths)^2 / sum of squared lengths: steps are drawn uniformly
    correlation: float | None  # of RTG at the start with the return; None where one of them never varies

    @property
    def mean(self) -> float:
        return sum(block.episodes * block.mean for block in self.blocks) / self.episodes

    @property
    def best(self) -> float:
        return max(block.best for block in self.blocks)


def measure(dataset: OfflineDataset, expert_return: float) -> Quality:
    """Measure a dataset against the return of an expert, which a card or a reference names."""
    if not expert_return > 0:
        raise KitError(f"shares of the expert's return need a positive one; got {expert_return}")
    returns, rtg = (values.double().cpu().numpy() for values in (dataset.returns, dataset.rtg))
    lengths, starts, owners = (
        values.cpu().numpy() for values in (dataset.lengths, dataset.starts, dataset.episode_ids)
    )
    junk = returns < JUNK * expert_return
    parts = np.array_split(returns, min(BLOCKS, len(returns)))
    reach = rtg.max() - TOP * (rtg.max() - rtg.min())
    return Quality(
        id=dataset.id,
        discount=dataset.discount,
        steps=len(rtg),
        episodes=len(returns),
        expert_return=float(expert_return),
        blocks=tuple(Block(len(part), float(part.mean()), float(part.max())) for part in parts),
        junk_episodes=float(junk.mean()),
        junk_steps=float(lengths[junk].sum() / lengths.sum()),
        top_step_episodes=len(np.unique(owners[rtg >= np.quantile(rtg, 1 - TOP)])),
        top_value_episodes=len(np.unique(owners[rtg >= reach])),
        effective_episodes=float(lengths.sum() ** 2 / (lengths.astype(np.float64) ** 2).sum()),
        correlation=_correlation(rtg[starts], returns),
    )


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's; None where a side does not vary beyond the rounding of float32."""
    if any(np.ptp(values) <= 1e-6 * np.abs(values).max() for values in (a, b)):
        return None
    return float(np.corrcoef(a, b)[0, 1])


def warnings(quality: Quality) -> list[str]:
    """What the data cannot carry, one sentence each; empty if nothing speaks against them."""
    found = []
    for count, what in (
        (quality.top_step_episodes, "the tenth of all steps with the highest RTG"),
        (quality.top_value_episodes, "the highest tenth of the range of RTG"),
    ):
        if count < FEWEST_TOP_EPISODES:
            holds = "1 episode holds" if count == 1 else f"{count} episodes hold"
            found.append(
                f"Only {holds} {what}: a model that is asked for high returns has these to copy and little to learn "
                f"from (fewer than {FEWEST_TOP_EPISODES})."
            )
    if quality.junk_episodes > MOST_JUNK:
        found.append(
            f"{quality.junk_episodes:.0%} of the episodes earn less than a tenth of the expert's return (more than "
            f"{MOST_JUNK:.0%}): a policy that stays near these data earns little."
        )
    if quality.correlation is None:
        found.append("Returns do not vary: asking for more or for less cannot make a difference.")
    elif quality.correlation < LEAST_CORRELATION:
        found.append(
            f"The discounted return that agents are asked for and the return that they are scored by correlate only "
            f"{quality.correlation:.2f} (less than {LEAST_CORRELATION:g}): agents may be asked to sprint and fall."
        )
    if quality.effective_episodes < FEWEST_EFFECTIVE:
        found.append(
            f"The steps are worth {quality.effective_episodes:.0f} episodes of equal length (fewer than "
            f"{FEWEST_EFFECTIVE}): quantiles of returns are single trajectories."
        )
    return found


def expert_of(dataset: OfflineDataset) -> float:
    """What an expert earns: by the dataset's own card, else D4RL's reference, else the best episode."""
    card = dataset.card.get("card") or {}
    policy, share = card.get("policy") or {}, card.get("share_of_expert")
    if share and policy.get("fresh_return_mean"):
        return float(policy["fresh_return_mean"]) / float(share)
    reference = world_of(dataset.env_spec.id if dataset.env_spec else dataset.id).reference
    return reference.high if reference else float(dataset.returns.max())


def describe(quality: Quality) -> str:
    """A table for the terminal, and the warnings below it."""
    correlation = "-" if quality.correlation is None else f"{quality.correlation:.2f}"
    junk = f"{quality.junk_episodes:.0%} of episodes, {quality.junk_steps:.0%} of steps"
    mean, best = (with_score(quality.id, value) for value in (quality.mean, quality.best))
    facts = {
        "size": f"{quality.steps:,} steps in {quality.episodes:,} episodes",
        "effective episodes": f"{quality.effective_episodes:,.0f}",
        "expert return": f"{quality.expert_return:,.1f}",
        "junk (below a tenth of it)": junk,
        "episodes with the top 10% of steps by RTG": f"{quality.top_step_episodes:,}",
        "episodes in the top 10% of the RTG range": f"{quality.top_value_episodes:,}",
        f"correlation of RTG (discount {quality.discount:g}) with return": correlation,
        "mean and best return (score)": f"{mean}, {best}",
    }
    published = d4rl_facts(quality.id)
    if published is not None:
        mean, best = (with_score(quality.id, value) for value in (published.return_mean, published.return_max))
        facts["D4RL v2's, not measured here"] = f"{published.transitions:,} steps; {mean}, {best}"
    width = max(map(len, facts))
    lines = [quality.id, *(f"  {name:<{width}}  {value}" for name, value in facts.items())]
    lines += ["", "  returns in the order of collection", f"  {'block':>5} {'episodes':>9} {'mean':>10} {'best':>10}"]
    lines += [
        f"  {number:>5} {block.episodes:>9,} {block.mean:>10,.1f} {block.best:>10,.1f}"
        for number, block in enumerate(quality.blocks, start=1)
    ]
    found = [f"  Warning: {text}" for text in warnings(quality)]
    return "\n".join([*lines, "", *found] if found else lines)
