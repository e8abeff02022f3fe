"""Claims that need no training: decided by exact computation on small MDPs, by toy worlds, or by a stopwatch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from brrcrl_lib.study.analysis.optimizer_race import read_bench
from brrcrl_lib.study.claims.decisions import DOES_NOT_HOLD, HOLDS, Decision, decide, merge
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.paper_tables import INFERENCE_MS
from brrcrl_lib.study.claims.statistics import ALPHA, Effect, difference
from brrcrl_lib.study.toys import causal_shift as shift
from brrcrl_lib.study.toys import sampling_bias, stairs_study, tabular, theory

TOLERANCE = 1e-9
SLIP = 4
RARE = 3
"""The slip of notebook 02, and the three rare samples of the paper's Figure 1."""


@dataclass(frozen=True)
class Fact:
    """A claim that is true or false without chance: one counter-example is enough, and so is a proof."""

    true: bool
    checked: int  # cases
    sentence: str

    @property
    def word(self) -> str:
        return HOLDS if self.true else DOES_NOT_HOLD


def audit() -> pd.DataFrame:
    """The recorded survey of random MDPs: one row per family, kind of transitions, seed and delta."""
    return pd.read_csv(theory.RECORDED)


def boltzmann() -> Fact:
    """Proposition 1 with exp(-E) and >=: the policy and the Boltzmann distribution, action by action."""
    rng, survey, worst, size = np.random.default_rng(0), audit(), 0.0, 200
    families = survey[["family", "transitions"]].drop_duplicates()
    for family, transitions in families.itertuples(index=False):
        mdp = theory.random_mdps(rng, size, str(family), transitions == "deterministic")
        returns = tabular.action_returns(mdp)
        policy = tabular.adaptive_policy(mdp, returns, 0.1)
        worst = max(worst, float(np.abs(policy - tabular.boltzmann(tabular.energy(mdp, returns, 0.1))).max()))
    strict = survey["strict_undefined"].sum() / survey["mdps"].sum()
    sentence = f"Proved with exp(-E) and ≥; as printed, with >, undefined in {strict:.0%} of random MDPs."
    return Fact(worst < TOLERANCE, size * len(families), sentence)


def kl_bound() -> Fact:
    """Theorem 1, first claim: KL over -N log delta, at most 1 everywhere."""
    survey = audit()
    worst = float(survey["kl_ratio_p100"].max())
    sentence = f"Proved; in {survey['mdps'].sum():,} cases the KL reaches at most {worst:.1%} of the bound."
    return Fact(worst <= 1 + TOLERANCE, int(survey["mdps"].sum()), sentence)


def never_worse() -> Fact:
    """Theorem 1, second claim: V^pi >= V^beta in every state."""
    survey = audit()
    violated, total = int(survey["violated"].sum()), int(survey["mdps"].sum())
    sentence = f"Counter-examples: some state loses in {violated:,} of {total:,} random cases ({violated / total:.1%})."
    return Fact(violated == 0, total, sentence)


def sampling_error() -> Decision:
    """Figure 1: error (total variation, per cent) of vanilla minus that of Bayes' rule, in three kinds of worlds."""
    table = pd.read_csv(sampling_bias.RESULTS)
    chosen = table[(table["protocol"] == "standard") & (table["gap"] == 2.0) & (table["rare_samples"] == RARE)]
    found = {
        str(scenario).replace("_", " "): difference(100 * rows["vanilla"], 100 * rows["bayes"], paired=True)
        for scenario, rows in chosen.sort_values("seed").groupby("scenario", sort=False)
    }
    claim = f"with {RARE} rare samples Bayes' rule errs less than vanilla"
    return decide(claim, found, matters=INTERESTS["sampling bias"].points, decimals=1)


def causal_shift() -> Decision:
    """Section 4.4: the behaviour policy changes and p(R|s,a) stays. Error (total variation, per cent) of vanilla minus
    that of Bayes' rule with p(a|s) learned anew from the new policy's actions.

    Random worlds are the units; each counts once, with its mean over the sizes of the shift.
    """
    table = pd.read_csv(shift.RESULTS)
    chosen = table[(table["shift"] == "habit") & (table["part"] == "all") & (table["strength"] > 0)]
    worlds = 100 * chosen.groupby(["scenario", "seed"], sort=False)[["vanilla", "bayes, cloned"]].mean()
    found = {
        str(scenario).replace("_", " "): difference(rows["vanilla"], rows["bayes, cloned"], paired=True)
        for scenario, rows in worlds.groupby(level="scenario", sort=False)
    }
    claim = "under a new behaviour policy Bayes' rule with the new p(a|s) errs less than vanilla"
    return decide(claim, found, matters=INTERESTS["causal"].points, decimals=1)


def after_a_slip() -> tuple[Decision, Decision]:
    """Figure 2: after a forced slip BR-RCRL with adaptive targets asks for what can be had, and earns more for it.

    Against vanilla RCRL under both customary rules; per cent of what the exact model earns with adaptive targets.
    The second decision is about returns alone.
    """
    rows = pd.read_csv(stairs_study.RESULTS / "stairs.csv")
    returns: dict[str, Effect] = {}
    targets: dict[str, Effect] = {}
    for berries in rows["berries"].unique():
        ideal = stairs_study.select(rows, berries, SLIP, "exact", "adaptive", 0.1)["counted_return"].mean()
        ours = stairs_study.select(rows, berries, SLIP, "joint", "adaptive", 0.1).sort_values("seed")
        for rule in ("schedule", "max"):
            theirs = stairs_study.select(rows, berries, SLIP, "vanilla", rule, 0.1).sort_values("seed")
            name = f"berries {berries} the stairs"
            gain = [100 * side["counted_return"].to_numpy() / ideal for side in (ours, theirs)]
            returns[f"{name} (return, against {rule})"] = difference(*gain, paired=False)
            share = [100 * side["off_support"].to_numpy() for side in (theirs, ours)]
            targets[f"{name} (impossible targets, {rule})"] = difference(*share, paired=False)
    claim = "after a slip adaptive targets stay possible and earn more"
    matters = INTERESTS["after a slip"].points
    parts = [decide(claim, part, matters=matters, alpha=ALPHA / 2, decimals=1) for part in (returns, targets)]
    return merge(claim, *parts), parts[0]


def decision_time() -> Fact:
    """Appendix: inference is slower than a conditional policy, but acceptable. Ours: no slower than the paper's own."""
    report = read_bench()
    races = {name: report[name]["acting"] for name in INFERENCE_MS.index if name in report}
    ours = {name: race["optimizers"]["cem (default)"]["ms"] for name, race in races.items()}
    theirs = max(race["optimizers"]["dfo 65,536"]["ms"] for race in races.values())
    good = all(ours[name] <= INFERENCE_MS[name] and race["energy_gap_to_paper"] < 1e-3 for name, race in races.items())
    sentence = (
        f"On one CPU core at most {max(ours.values()):.1f} ms with CEM, {theirs:.0f} ms with the paper's search "
        f"(its GPU: {INFERENCE_MS.max():.1f} ms)."
    )
    return Fact(good, len(races), sentence)
