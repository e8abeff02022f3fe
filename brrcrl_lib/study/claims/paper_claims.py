"""The 18 claims of the paper as data: what it says, how we test it, and what the recorded rows say.

Nothing here is typed in but the paper's words and ours: effects, intervals and verdicts follow from the rows, so that
rows of another dataset give another table (`Evidence("d4rl")`), and a new version of a dataset replaces the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from brrcrl_lib.study.claims import (
    atari,
    components,
    delivered,
    delta_sweep,
    exact,
    independence,
    objectives,
    target_rules,
)
from brrcrl_lib.study.claims.decisions import FINDINGS, NOT_DECIDED, Decision, decide, merge
from brrcrl_lib.study.claims.effects import NoRows, best_setting, effects, judge, judge_all
from brrcrl_lib.study.claims.exact import Fact
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.rows import recorded
from brrcrl_lib.study.claims.scores import Interval
from brrcrl_lib.study.claims.statistics import ALPHA
from brrcrl_lib.study.claims.yardsticks import CLONING
from brrcrl_lib.study.experiments.results import RESULTS
from brrcrl_lib.worlds import world_of

NOT_TESTED = "not tested yet"
RIVALS = ("dt", "rvs", "ibc", "td3_bc", "iql", "cql", "bear")
"""The methods of Table 1 that the kit has, beside cloning; their rows make the claim testable."""


@dataclass(frozen=True)
class Evidence:
    """The recorded rows of one source of data."""

    data: str = "kit"
    folder: Path = RESULTS

    @cached_property
    def rows(self) -> pd.DataFrame:
        return recorded(self.data, self.folder)

    @cached_property
    def robots(self) -> pd.DataFrame:
        return self._kind("box")

    @cached_property
    def games(self) -> pd.DataFrame:
        return self._kind("pixels")

    def _kind(self, kind: str) -> pd.DataFrame:
        return self.rows[self.rows["env"].map(lambda env: world_of(str(env)).kind == kind).astype(bool)]

    def grid(self, name: str) -> pd.DataFrame:
        return self.rows[self.rows["grid"] == name]

    @cached_property
    def traces(self) -> dict[str, pd.DataFrame]:
        """Of the datasets in the grid of notebook 09, keyed by their names."""
        kept = self.robots["key"].map(lambda key: (self.folder / "traces" / f"{key}.csv.gz").exists())
        if not kept.any():
            raise NoRows("no traces are recorded")
        return delivered.read_traces(self.robots[kept.astype(bool)], self.folder)


Verdict = tuple[Decision | Fact, Decision | None]
"""What was decided, and the part of it whose mean effect stands for the claim (None: no single number does)."""


# -- one function per claim --------------------------------------------------------------------------------------


def _all_of(decision: Decision) -> Verdict:
    return decision, decision


def _labelled(decision: Decision, label: str, share: int) -> Decision:
    """The same comparisons under longer names, judged at 1/`share` of alpha: a part of a claim of several parts."""
    renamed = {f"{name} ({label})": effect for name, effect in decision.effects.items()}
    return decide(decision.claim, renamed, matters=decision.matters, alpha=ALPHA / share, decimals=1)


def imitation(evidence: Evidence) -> Verdict:
    ours, theirs = best_setting(evidence.robots, objectives.OURS), objectives.best_cloning(evidence.robots)
    claim = f"{target_rules.TITLES[ours]} earns more than {theirs}, best against best"
    settings = (objectives.OURS[ours], CLONING[theirs])
    return _all_of(judge(claim, evidence.robots, *settings, INTERESTS["imitation"].points))


def vanilla(evidence: Evidence) -> Verdict:
    models = {f"{model}|{rule}": wanted for model in ("authors", "paper")
              for rule, wanted in target_rules.rules_for(model).items()}  # fmt: skip
    return _all_of(target_rules.best_against_best(evidence.robots, best_setting(evidence.robots, models).split("|")[0]))


def state_of_the_art(evidence: Evidence) -> Verdict:
    known = {name: {"method": name} for name in RIVALS if (evidence.robots["method"] == name).any()}
    if not known:
        raise NoRows(f"no rows of {', '.join(RIVALS)}")
    ours = objectives.OURS[best_setting(evidence.robots, objectives.OURS)]
    claim = "BR-RCRL earns more than every other offline method of Table 1"
    return _all_of(judge_all(claim, evidence.robots, ours, known, INTERESTS["vanilla"].points))


def games(evidence: Evidence) -> Verdict:
    return _all_of(atari.best_against_best(evidence.games))


def target_rule(evidence: Evidence) -> Verdict:
    parts = target_rules.decisions(evidence.robots)
    if parts["max"].effects == parts["DT scheduler"].effects:  # the same episodes: one comparison, not two
        return _all_of(parts["max"])
    found = [_labelled(part, f"against {rival}", len(parts)) for rival, part in parts.items()]
    return _all_of(merge("adaptive targets earn more than Max and than the DT scheduler", *found))


def small_delta(evidence: Evidence) -> Verdict:
    parts = [delta_sweep.decisions(evidence.robots)["down to 0.1"]]
    contest = atari.contests()["Monte Carlo, down to 0.1"]
    if atari.meets(evidence.games, contest.ours, contest.theirs):
        points = INTERESTS[contest.interest].points
        parts.append(judge(contest.claim, evidence.games, contest.ours, contest.theirs, points))
    found = [decide(part.claim, part.effects, matters=part.matters, alpha=ALPHA / len(parts), decimals=1)
             for part in parts]  # fmt: skip
    return _all_of(merge("delta 0.1 earns more than delta 0.9", *found))


def matched(evidence: Evidence) -> Verdict:
    return delivered.match_decision({name: delivered.match(trace) for name, trace in evidence.traces.items()}), None


def rising(evidence: Evidence) -> Verdict:
    rises = {name: found for name, trace in evidence.traces.items() if (found := delivered.rise(trace))}
    if not rises:
        raise NoRows("no episode lasts 100 steps")
    return delivered.rise_decision(rises), None


def every_component(evidence: Evidence) -> Verdict:
    parts = components.decisions(evidence.robots)
    found = [_labelled(part, name, len(parts)) for name, part in parts.items()]
    return _all_of(merge("the full model earns more than each of its reductions", *found))


def low_returns(evidence: Evidence) -> Verdict:
    parts = independence.decisions(evidence.robots)
    if not {"BR-RCRL", "vanilla, DT scheduler"} <= set(parts):
        raise NoRows("no rows of trimmed datasets")
    ours = _labelled(parts["BR-RCRL"], "BR-RCRL gains", 2)
    theirs = {f"{name} (vanilla is alike)": effect for name, effect in parts["vanilla, DT scheduler"].effects.items()}
    alike = independence.decide_alike("", theirs, matters=parts["vanilla, DT scheduler"].matters, alpha=ALPHA / 2,
                                      decimals=1)  # fmt: skip
    return merge("low-return trajectories help BR-RCRL and do not matter to vanilla RCRL", ours, alike), ours


def impossible_targets(evidence: Evidence) -> Verdict:
    names = {"BR-RCRL": "Monte Carlo, adaptive", "vanilla": "vanilla, adaptive over max"}
    contests, found = atari.contests(), []
    for label, name in names.items():
        contest = contests[name]
        change = effects(evidence.games, contest.ours, contest.theirs, f" ({label})")
        if not change:
            raise NoRows("no rows of games under Max")
        found.append(decide("", change, matters=INTERESTS[contest.interest].points, alpha=ALPHA / 2, decimals=1))
    return _all_of(merge("in games adaptive targets earn more than the maximum", *found))


# -- the claims --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperClaim:
    """What the paper says and where; how we test it, in which notebook; and what would change our mind."""

    key: str
    short: str
    says: str
    where: str
    test: str
    judge: Callable[[Evidence], Verdict]
    notebook: str
    change: str
    interests: tuple[str, ...] = ()
    """Whose paper effects, averaged, are the unit (see `interest.INTERESTS`)."""
    measure: str = "points"


def toy(function: Callable[[], Decision | Fact | tuple[Decision, Decision]]) -> Callable[[Evidence], Verdict]:
    """A claim that does not depend on trainings on the datasets."""

    def judged(evidence: Evidence) -> Verdict:
        found = function()
        if isinstance(found, Decision):
            return found, found
        return (found, None) if isinstance(found, Fact) else found

    return judged


CLAIMS = (
    PaperClaim(
        "sampling bias", "Bayes' rule is less affected by rare returns",
        "When conditioned on R = 1, only 3 noisy samples are available; our policy is less affected by the high "
        "sampling variance.",
        "Section 3, Figure 1", "error of p(a|s,R=1) against the exact one in three kinds of worlds, 3 rare samples",
        toy(exact.sampling_error), "01",
        "a class of worlds, found in practice, in which one of the two factorisations is always simpler",
        ("sampling bias",), "% of total variation",
    ),
    PaperClaim(
        "after a slip", "After a slip, adaptive targets stay possible and earn more",
        "If the robot takes one bad move, the conditioning RTG turns into an OOD input, bringing in severe performance "
        "drops; our algorithm can dynamically select the RTG.",
        "Section 3, Figure 2", "return and share of impossible targets after a forced slip, two kinds of stairs",
        toy(exact.after_a_slip), "02", "stairs on which climbing is bad advice, as in most of the paper's tasks",
        ("after a slip",), "% of what can be had",
    ),
    PaperClaim(
        "boltzmann", "The policy is a Boltzmann distribution",
        "π^δ(a|s) is the Boltzmann distribution of the energy function E^δ(a|s).",
        "Section 4.2, Proposition 1", "both sides computed exactly on random MDPs", toy(exact.boltzmann), "03",
        "nothing: it is proved", (), "",
    ),
    PaperClaim(
        "kl bound", "The KL to the data is at most -N log δ",
        "KL[π^δ(T) || β(T)] ≤ -N log δ.", "Section 4.5, Theorem 1", "the exact KL on random MDPs",
        toy(exact.kl_bound), "03", "nothing: it is proved, and attained", (), "",
    ),
    PaperClaim(
        "never worse", "Never worse than the data in any state",
        "V^β(s) ≤ V^π(s) for all s in S.", "Section 4.5, Theorem 1", "exact values of both policies on random MDPs",
        toy(exact.never_worse), "03", "another definition of π^δ, such as deciding on the target once", (), "",
    ),
    PaperClaim(
        "causal", "The causal factorisation is robust to shifts",
        "BR-RCRL generalizes much better than vanilla RCRL when the distribution shifts, because it respects the "
        "causal relationships between s, a and R.",
        "Section 4.4, Figure 3", "replace p(a|s), keep the learned p(R|s,a), compare with the exact answer in three "
        "kinds of toy worlds and four sizes of the shift",
        toy(exact.causal_shift), "01", "robots whose behaviour policy changes while p(R|s,a) stays; over several "
        "decisions it does not stay",
        ("causal",), "% of total variation",
    ),
    PaperClaim(
        "imitation", "BR-RCRL earns more than imitation",
        "Our method outperforms all baselines in terms of the average score (BC and 10% BC among them).",
        "Section 5.2, Table 1", "the better objective at δ = 0.1 against the best of cloning all, 50% or 20% of the "
        "episodes", imitation, "05", "five seeds on data of D4RL's quality", ("imitation",),
    ),
    PaperClaim(
        "vanilla", "BR-RCRL earns more than vanilla RCRL",
        "BR-RCRL improves upon vanilla RCRL by up to 11%.", "Abstract, Table 1",
        "each under its best of five target rules", vanilla, "07",
        "five seeds on data of D4RL's quality, and a Decision Transformer as vanilla", ("vanilla",),
    ),
    PaperClaim(
        "state of the art", "BR-RCRL is the state of the art",
        "BR-RCRL achieves state-of-the-art performance on the Gym-Mujoco offline RL benchmark.",
        "Abstract, Table 1", "the better objective against every other method of Table 1 that the kit has",
        state_of_the_art, "14", "rows of IQL, CQL, TD3+BC, DT and others on the same data", ("vanilla",),
    ),
    PaperClaim(
        "games", "On pixels it beats cloning and return-conditioned rivals",
        "Our method has the highest score in 3 out of 4 games.", "Section 5.2, Table 2",
        "the better learner under its best rule against vanilla's best and cloning", games, "12",
        "five seeds in all four games, trained for longer", ("games",),
    ),
    PaperClaim(
        "target rule", "Adaptive targets beat Max and the DT scheduler",
        "Our method achieves better performance than using both max value and DT scheduler.", "Section 5.3, Table 3",
        "the same weights under three rules", target_rule, "07", "five seeds on data of D4RL's quality",
        ("max", "DT scheduler"),
    ),
    PaperClaim(
        "delta", "The smaller δ, the better",
        "Reducing the value of δ consistently improves the performance.", "Section 5.3, Figure 4",
        "δ = 0.1 against 0.9 with the same weights, robots and games", small_delta, "08",
        "five seeds; below 0.1 the paper itself warns", ("delta",),
    ),
    PaperClaim(
        "match", "The observed return matches the target",
        "The observed RTG can generally match the same value of the target RTG.", "Section 5.4, Figure 5",
        "calibration error per training, steps near the time limit left out: within a tenth of range", matched, "09",
        "errors that stay within a tenth with five seeds", ("match",), "% of the range",
    ),
    PaperClaim(
        "rise", "Targets start in the middle and rise",
        "Target RTG usually starts from a medium value and increases to the high RTG region.", "Section 5.4, Figure 5",
        "place of the first target among all, and the change by steps 100 to 300", rising, "09",
        "five seeds on data whose robots do not fall early", ("rise",), "% of the range",
    ),
    PaperClaim(
        "components", "Every component matters",
        "Removing L1, prior negatives or the Bayesian reparameterization harms the performance.",
        "Section 5.5, Table 4", "the full model against each reduction", every_component, "10",
        "a full model that works on Walker2d first, and five seeds",
        ("without L1", "uniform negatives", "without the reparameterisation"),
    ),
    PaperClaim(
        "low returns", "Low-return data help BR-RCRL, not vanilla",
        "DT models on the top 100%, 50% and 20% achieve similar performance; for our method removing the low RTG "
        "samples has a negative influence.",
        "Appendix, RTG Independence", "all trajectories against the best 20%", low_returns, "11",
        "steps scaled to the data, and a Decision Transformer as vanilla", ("low returns",),
    ),
    PaperClaim(
        "impossible targets", "Impossible targets mislead on pixels",
        "RTG = 20 is an OOD condition for the DT model.", "Appendix, OOD Conditioning",
        "adaptive against Max with the same weights, BR-RCRL and vanilla", impossible_targets, "12",
        "five seeds in all four games", ("impossible targets",),
    ),
    PaperClaim(
        "time", "Inference is fast enough",
        "Although the inference spends more time than directly using a conditional policy, the cost is still "
        "acceptable.",
        "Appendix, Table of inference times", "milliseconds per action at no higher energy than the paper's search",
        toy(exact.decision_time), "06", "the same search timed on the paper's GPU", (), "",
    ),
)  # fmt: skip


# -- verdicts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A claim and what the evidence says about it."""

    claim: PaperClaim
    found: Decision | Fact | None
    headline: Decision | None

    @property
    def word(self) -> str:
        return NOT_TESTED if self.found is None else self.found.word

    @property
    def exact(self) -> bool:
        return isinstance(self.found, Fact)

    @property
    def effect(self) -> Interval | None:
        """The mean effect over comparisons with its 95% interval, in points or per cent."""
        pooled = self.headline.overall if self.headline else None
        return pooled.interval() if pooled else None

    @property
    def paper_effect(self) -> float | None:
        """The paper's own effect in the same units; None where it gives no number."""
        names = [name.partition(" (")[0] for name in self.headline.effects] if self.headline else []
        known = [unit for name in self.claim.interests if (unit := INTERESTS[name].unit(names)) is not None]
        return sum(known) / len(known) if known else None

    @property
    def unit(self) -> float | None:
        """The paper's own effect; where it gives no number, twice the smallest effect of interest."""
        if self.paper_effect is not None or not self.claim.interests:
            return self.paper_effect
        return 2 * INTERESTS[self.claim.interests[0]].points

    @property
    def relative(self) -> Interval | None:
        """The effect in units of the paper's own."""
        return Interval(*(value / self.unit for value in self.effect)) if self.effect and self.unit else None

    @property
    def count(self) -> str:
        """How many training seeds stand behind a comparison, or how many cases behind an exact check."""
        if self.found is None:
            return "-"
        if isinstance(self.found, Fact):
            return f"{self.found.checked:,} cases"
        counts = [min(effect.n_ours, effect.n_theirs) for effect in self.found.effects.values()]
        return f"{counts[0]} seeds" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)} seeds"

    @property
    def sentence(self) -> str:
        """At most 20 words on what was found."""
        if self.found is None:
            return "No rows are recorded for it."
        if isinstance(self.found, Fact):
            return self.found.sentence
        names = list(self.found.findings.values())
        counts = ", ".join(f"{finding} {names.count(finding)}" for finding in FINDINGS if finding in names)
        text = f"Of {len(names)} comparisons: {counts}"
        if self.effect:
            low, high = self.effect.low, self.effect.high
            text += f"; mean {self.effect.estimate:+.1f} [{low:+.1f}, {high:+.1f}] {self.claim.measure}"
        return f"{text}."

    @property
    def visible(self) -> str:
        """What so many seeds could have shown where a comparison stayed undecided."""
        if not isinstance(self.found, Decision) or NOT_DECIDED not in self.found.findings.values():
            return "-"
        return "nothing (1 seed)" if self.found.visible is None else f"{self.found.visible:.0f} {self.claim.measure}"


def judge_claim(claim: PaperClaim, evidence: Evidence) -> Judged:
    try:
        return Judged(claim, *claim.judge(evidence))
    except NoRows:
        return Judged(claim, None, None)


def judge_claims(evidence: Evidence) -> list[Judged]:
    """All 18, in the paper's order."""
    return [judge_claim(claim, evidence) for claim in CLAIMS]


def full_table(judged: list[Judged]) -> pd.DataFrame:
    """Everything about every claim, as notebook 14 opens with it."""
    lines = []
    for found in judged:
        relative = found.relative if found.paper_effect is not None else None
        shown = (
            f"{found.effect.estimate:+.1f} [{found.effect.low:+.1f}, {found.effect.high:+.1f}]" if found.effect else "-"
        )
        lines.append(
            {
                "claim, in the paper's words": found.claim.says,
                "where": found.claim.where,
                "our test": found.claim.test,
                "effect": f"{shown} {found.claim.measure}" if found.effect else "-",
                "in units of the paper's": f"{relative.estimate:+.2f} [{relative.low:+.2f}, {relative.high:+.2f}]"
                if relative else "-",
                "n": found.count,
                "verdict": found.word,
                "could have shown": found.visible,
                "notebook": found.claim.notebook,
                "what would change our mind": found.claim.change,
            }
        )  # fmt: skip
    return pd.DataFrame(lines, index=[found.claim.short for found in judged])


def markdown_table(judged: list[Judged], notebooks: dict[str, str]) -> str:
    """The claims as the README shows them: claim, verdict, one sentence, notebook (number -> file name)."""
    lines = ["| claim of the paper | verdict | what we found | notebook |", "|---|---|---|---|"]
    for found in judged:
        name = notebooks.get(found.claim.notebook)
        link = f"[{found.claim.notebook}](notebooks/{name}.ipynb)" if name else found.claim.notebook
        lines.append(f"| {found.claim.short} ({found.claim.where}) | **{found.word}** | {found.sentence} | {link} |")
    return "\n".join(lines)
