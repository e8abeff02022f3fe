"""From effects to a word: holds, does not hold, mixed or not decided.

A claim says that one side earns more than the other in each of k comparisons (datasets, say), and says beforehand
how much more would matter. Two corrections keep the error of the whole claim at 5%: directions come from p values
after Holm's correction, and what is excluded comes from intervals with confidence 1 - 5%/k (Bonferroni's).

One comparison finds one of four things:

- **holds**: significant in the claimed direction, and the interval reaches the effect that matters.
- **reversed**: significant in the other direction, and the interval reaches that far down.
- **too small**: the interval ends below the effect that matters. It may be significant all the same: a difference of
  16 between two robots that stand still is no evidence for a claim about walking.
- **not decided**: anything else. A side with fewer than `least_seeds` seeds is always here.

A claim that two things are alike is turned round (`decide_alike`): a comparison **holds** if its interval lies within
what would matter on either side, and **differs** if its interval lies outside.

The claim then

- **holds** if every comparison holds;
- **does not hold** if every comparison is reversed or too small (or differs);
- is **mixed** if one comparison holds and another is reversed or too small: significant for it here, against it there;
- is **not decided** otherwise. Partial evidence ("holds on 1 of 3, not decided on 2 of 3") is told behind the word
  and does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from brrcrl_lib.study.claims.statistics import ALPHA, Effect, holm, pool

WORDS = HOLDS, DOES_NOT_HOLD, MIXED, NOT_DECIDED = "holds", "does not hold", "mixed", "not decided"
REVERSED, TOO_SMALL, DIFFERS = AGAINST = "reversed", "too small", "differs"
FINDINGS = (HOLDS, *AGAINST, NOT_DECIDED)


def directions(effects: Mapping[str, Effect], alpha: float = ALPHA) -> dict[str, int]:
    """1 or -1 for each effect that is significant after Holm's correction, else 0: right together 95 times in 100."""
    tested = {name: effect.p for name, effect in effects.items() if effect.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True)) if tested else {}
    return {
        name: int(np.sign(effect.estimate)) if adjusted.get(name, 1.0) <= alpha else 0
        for name, effect in effects.items()
    }


@dataclass(frozen=True)
class Decision:
    """What the effects say about a claim."""

    claim: str
    effects: Mapping[str, Effect]
    matters: float  # the smallest effect of interest, in the units of the effects, stated beforehand
    findings: Mapping[str, str]
    alpha: float = ALPHA
    decimals: int = 0

    @property
    def word(self) -> str:
        found = set(self.findings.values())
        if found == {HOLDS}:
            return HOLDS
        if found <= set(AGAINST):
            return DOES_NOT_HOLD
        return MIXED if HOLDS in found and found & set(AGAINST) else NOT_DECIDED

    @property
    def overall(self) -> Effect | None:
        """The mean of all comparisons with two seeds or more; None if there is none.

        Comparisons are called `dataset` or `dataset (what)`. Those of one dataset may share seeds and are pooled as
        if they moved together, which can only widen the interval; datasets are independent.
        """
        groups: dict[str, list[Effect]] = {}
        for name, effect in self.effects.items():
            if effect.error is not None:
                groups.setdefault(name.partition(" (")[0], []).append(effect)
        return pool(list(groups.values()))

    @property
    def visible(self) -> float | None:
        """The largest of the smallest effects that the undecided comparisons could have shown."""
        found = [effect.visible(self.alpha / len(self.effects)) for name, effect in self.effects.items()
                 if self.findings[name] == NOT_DECIDED]  # fmt: skip
        known = [value for value in found if value is not None]
        return max(known) if known else None

    @property
    def summary(self) -> str:
        """The word, and how many comparisons found what where they differ."""
        names = list(self.findings.values())
        counts = {finding: names.count(finding) for finding in FINDINGS if finding in names}
        if len(counts) < 2:
            return self.word
        return f"{self.word} ({', '.join(f'{name} on {n} of {len(names)}' for name, n in counts.items())})"

    def describe(self, name: str) -> str:
        """One comparison: its effect, its own 95% interval, what it found, and what it could have shown."""
        effect, finding, digits = self.effects[name], self.findings[name], self.decimals
        seeds = min(effect.n_ours, effect.n_theirs)
        if effect.error is None:
            return f"{name} {effect.estimate:+,.{digits}f}, n = 1: {finding}"
        interval = f"[{effect.low:+,.{digits}f}, {effect.high:+,.{digits}f}]"
        text = f"{name} {effect.estimate:+,.{digits}f} {interval}: {finding}"
        if finding == NOT_DECIDED:
            visible = effect.visible(self.alpha / len(self.effects))
            text += f", {seeds} seeds could have shown {visible:,.{digits}f}"
        return text

    def __str__(self) -> str:
        return f"{self.claim}: {self.summary}. {'; '.join(self.describe(name) for name in self.effects)}."


def merge(claim: str, *parts: Decision) -> Decision:
    """One decision on a claim of several parts; each part has its own effect of interest and share of alpha."""
    names = [name for part in parts for name in part.effects]
    if len(set(names)) < len(names):
        raise ValueError("comparisons of different parts need different names")
    all_effects = {name: effect for part in parts for name, effect in part.effects.items()}
    findings = {name: finding for part in parts for name, finding in part.findings.items()}
    return Decision(
        claim, all_effects, parts[0].matters, findings, sum(part.alpha for part in parts), parts[0].decimals
    )


def decide_alike(
    claim: str, effects: Mapping[str, Effect], *, matters: float, alpha: float = ALPHA, decimals: int = 0
) -> Decision:
    """The decision on the claim that no effect is as large as `matters`, in either direction."""
    if not effects:
        raise ValueError(f"nothing was compared for the claim: {claim}")
    if not matters > 0:
        raise ValueError(f"two things are alike within a margin above 0; got {matters}")
    findings = {}
    for name, effect in effects.items():
        # Excluding both ends needs no correction (both tests must succeed); k comparisons do: 1 - alpha/k, two-sided.
        interval = effect.interval(1 - alpha / len(effects))
        if interval is None:
            findings[name] = NOT_DECIDED
        elif -matters <= interval.low and interval.high <= matters:
            findings[name] = HOLDS
        else:
            findings[name] = DIFFERS if interval.low > matters or interval.high < -matters else NOT_DECIDED
    return Decision(claim, dict(effects), matters, findings, alpha, decimals)


def decide(
    claim: str,
    effects: Mapping[str, Effect],
    *,
    matters: float,
    alpha: float = ALPHA,
    least_seeds: int = 2,
    decimals: int = 0,
) -> Decision:
    """The decision on the claim that every effect is positive, by the rule at the head of this file."""
    if not effects:
        raise ValueError(f"nothing was compared for the claim: {claim}")
    if not matters >= 0:
        raise ValueError(f"the smallest effect of interest must be 0 or more; got {matters}")
    significant = directions(effects, alpha)
    findings = {}
    for name, effect in effects.items():
        simultaneous = effect.interval(1 - alpha / len(effects))
        if simultaneous is None or min(effect.n_ours, effect.n_theirs) < least_seeds:
            findings[name] = NOT_DECIDED
        elif significant[name] > 0 and simultaneous.high >= matters:
            findings[name] = HOLDS
        elif significant[name] < 0 and simultaneous.low <= -matters:
            findings[name] = REVERSED
        else:
            findings[name] = TOO_SMALL if simultaneous.high < matters else NOT_DECIDED
    return Decision(claim, dict(effects), matters, findings, alpha, decimals)
