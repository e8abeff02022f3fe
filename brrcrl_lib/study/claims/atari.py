"""Section 4.3 on pixels: Table 2 and Figure 4, right, from the rows of the grid `atari`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.data.open import LADDER_STEPS
from brrcrl_lib.study.claims.decisions import Decision
from brrcrl_lib.study.claims.delta_sweep import STEPS
from brrcrl_lib.study.claims.effects import best_setting, judge, judge_all
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.paper_tables import ATARI_PROTOCOL, TABLE_2
from brrcrl_lib.study.claims.scores import Interval, normalised_score, reference
from brrcrl_lib.study.claims.statistics import mean_interval
from brrcrl_lib.study.claims.summary import summarise, variants
from brrcrl_lib.study.experiments.grids import ATARI_DELTAS
from brrcrl_lib.study.experiments.results import (
    AS_PLAYED,
    RESULTS,
    order_datasets,
    read_trace,
    select,
    short_name,
)
from brrcrl_lib.worlds import DatasetName

LEARNERS = {"monte_carlo": "Monte Carlo", "distributional_td": "distributional TD"}
"""How the table learns returns: the paper's text, and its released code."""

RULES: dict[str, dict[str, Any]] = {
    "adaptive, δ = 0.1": {"target": "adaptive", "delta": 0.1},
    "max": {"target": "max"},
    "DT scheduler": {"target": "dt_schedule"},
}

METHODS: dict[str, dict[str, Any]] = variants(
    {
        "BR-RCRL, Monte Carlo": {"objective": "monte_carlo"},
        "BR-RCRL, distributional TD": {"objective": "distributional_td"},
        "vanilla, adaptive": {"method": "vanilla"},
        "vanilla, max": {"method": "vanilla", "target": "max"},
        "vanilla, DT scheduler": {"method": "vanilla", "target": "dt_schedule"},
        "cloning": {"method": "cloning"},
        "p(a | s) of the table, Monte Carlo": {"objective": "monte_carlo", "clone": True},
        "p(a | s) of the table, distributional TD": {"objective": "distributional_td", "clone": True},
    },
    "br_rcrl_joint",
)


def sweep(learner: str) -> dict[str, dict[str, Any]]:
    """Every delta as a setting, from the most modest to the most ambitious."""
    differences = {f"{delta:g}": {"objective": learner, "delta": delta} for delta in ATARI_DELTAS}
    return variants(differences, "br_rcrl_joint")


def rules_for(learner: str) -> dict[str, dict[str, Any]]:
    """The target rules as settings of BR-RCRL with one learner."""
    return variants({name: {"objective": learner, **rule} for name, rule in RULES.items()}, "br_rcrl_joint")


@dataclass(frozen=True)
class Contest:
    """A claim that one setting earns more than another, and which effect of interest it is judged by."""

    claim: str
    ours: dict[str, Any]
    theirs: dict[str, Any]
    interest: str


def contests() -> dict[str, Contest]:
    """Every pair of settings that is judged."""
    found: dict[str, Contest] = {}
    for learner, name in LEARNERS.items():
        ours, deltas, rules = METHODS[f"BR-RCRL, {name}"], sweep(learner), rules_for(learner)
        for rival in ("vanilla, adaptive", "vanilla, max", "vanilla, DT scheduler", "cloning"):
            claim = f"BR-RCRL ({name}) earns more than {rival}"
            found[f"{name} beats {rival}"] = Contest(claim, ours, METHODS[rival], "games")
        unasked = METHODS[f"p(a | s) of the table, {name}"]
        claim = f"asking for theta earns more than the same table's p(a | s) ({name})"
        found[f"{name}, asking"] = Contest(claim, ours, unasked, "games")
        for step, (small, large) in STEPS.items():
            claim = f"delta {small:g} earns more than {large:g} ({name})"
            found[f"{name}, {step}"] = Contest(claim, deltas[f"{small:g}"], deltas[f"{large:g}"], "delta in games")
        claim = f"adaptive targets earn more than max ({name})"
        found[f"{name}, adaptive"] = Contest(claim, rules["adaptive, δ = 0.1"], rules["max"], "impossible targets")
    for rule in ("max", "DT scheduler"):
        claim = f"adaptive targets earn more than {rule} (vanilla)"
        sides = (METHODS["vanilla, adaptive"], METHODS[f"vanilla, {rule}"])
        found[f"vanilla, adaptive over {rule}"] = Contest(claim, *sides, "impossible targets")
    mc, td = (METHODS[f"BR-RCRL, {name}"] for name in LEARNERS.values())
    found["learners"] = Contest("Monte Carlo earns more than distributional TD", mc, td, "games")
    return found


def decisions(rows: pd.DataFrame) -> dict[str, Decision]:
    """Every contest that has rows for both of its sides in at least one game."""
    return {
        name: judge(contest.claim, rows, contest.ours, contest.theirs, INTERESTS[contest.interest].points)
        for name, contest in contests().items()
        if meets(rows, contest.ours, contest.theirs)
    }


def best_against_best(rows: pd.DataFrame) -> Decision:
    """Table 2: the better learner under its best rule against vanilla RCRL under its own best, and against cloning."""
    ours = {
        f"BR-RCRL, {name}, {rule}": wanted
        for learner, name in LEARNERS.items()
        for rule, wanted in rules_for(learner).items()
    }
    vanilla = {name: METHODS[name] for name in METHODS if name.startswith("vanilla")}
    chosen, rival = best_setting(rows, ours), best_setting(rows, vanilla)
    rivals = {rival: vanilla[rival], "cloning": METHODS["cloning"]}
    claim = f"{chosen} earns more than {rival} and than cloning, best against best"
    return judge_all(claim, rows, ours[chosen], rivals, INTERESTS["games"].points)


def meets(rows: pd.DataFrame, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether any game has rows for both settings."""
    return bool(set(select(rows, **ours)["dataset"]) & set(select(rows, **theirs)["dataset"]))


def unjudged(rows: pd.DataFrame) -> list[str]:
    """Claims that no game has rows for yet."""
    return [contest.claim for contest in contests().values() if not meets(rows, contest.ours, contest.theirs)]


def seeds_in_words(rows: pd.DataFrame) -> str:
    """How many trainings stand behind each game's numbers."""
    counts = rows.groupby("dataset")["train_seed"].nunique()
    return ", ".join(
        f"{short_name(name)} {counts[name]} training seed{'' if counts[name] == 1 else 's'}"
        for name in order_datasets(rows["dataset"])
    )


def word(judged: Mapping[str, Decision], name: str) -> str:
    """The decision on one contest, if there are rows for it."""
    return judged[name].summary if name in judged else "not recorded yet"


def training_cost(rows: pd.DataFrame) -> str:
    """How much longer one learner trains than the other, in words."""
    trained = select(rows, method="br_rcrl_joint").drop_duplicates(["dataset", "objective", "train_seed"])
    seconds = trained.pivot_table(index="dataset", columns="objective", values="train_seconds")
    if set(LEARNERS) - set(seconds):
        return "only one of the learners is recorded"
    ratio = (seconds["distributional_td"] / seconds["monte_carlo"]).dropna().median()
    return f"distributional TD trains {ratio:.1f} times as long as Monte Carlo for the same number of steps"


def sweep_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of BR-RCRL with adaptive targets, every delta of them."""
    settings = {name: value for name, value in AS_PLAYED["br_rcrl_joint"].items() if name not in ("objective", "delta")}
    return select(rows, **settings)


# -- target and observed return ----------------------------------------------------------------------------------


def game_traces(
    rows: pd.DataFrame, folder: Path = RESULTS, learner: str = "monte_carlo"
) -> dict[str, dict[str, pd.DataFrame]]:
    """Per game and target rule, every step of the first training seed's games, for the rows whose trace was kept."""
    found: dict[str, dict[str, pd.DataFrame]] = {}
    for dataset in order_datasets(rows["dataset"]):
        for name, wanted in rules_for(learner).items():
            chosen = select(rows, dataset=dataset, **wanted).sort_values("train_seed")
            if chosen.empty or not (folder / "traces" / f"{chosen['key'].iloc[0]}.csv.gz").exists():
                continue
            line = chosen.iloc[0]
            trace = read_trace(str(line["key"]), float(line["discount"]), folder, float(line["reward_clip"]))
            found.setdefault(short_name(dataset), {})[name] = trace.assign(seed=int(line["train_seed"]))
    return found


def asked_and_got(traces: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """Mean target and observed return of one training, their gap, and how often the target was reached.

    The interval is Student's over whole games of that one model: it says nothing about other trainings.
    """
    lines = {}
    for game, rules in traces.items():
        for rule, trace in rules.items():
            gaps = (trace["observed"] - trace["target"]).groupby(trace["episode"]).mean()
            gap = mean_interval(gaps) or Interval(float(gaps.mean()), np.nan, np.nan)
            moving = min(trace["target"].nunique(), trace["observed"].nunique()) > 1
            lines[game, rule] = {
                "target": f"{trace['target'].mean():.2f}",
                "observed": f"{trace['observed'].mean():.2f}",
                "observed - target": f"{gap.estimate:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]",
                "steps that got it": f"{(trace['observed'] >= trace['target']).mean():.0%}",
                "correlation": f"{trace['target'].corr(trace['observed']):.2f}" if moving else "-",
            }
    return pd.DataFrame(lines).T


# -- Table 2 -----------------------------------------------------------------------------------------------------


UNITS = ("raw score", "Mnih", "Wang")
"""Raw scores, and human-normalised ones by the human scores of Mnih et al. (2015) or of Wang et al. (2016)."""


def paper_raw() -> pd.DataFrame:
    """Table 2 as raw scores, methods down, games across; its units are taken to be those of Mnih et al."""
    marks = {str(game): reference(str(game), paper=True) for game in TABLE_2}
    low, high = (pd.Series({game: getattr(mark, end) for game, mark in marks.items()}) for end in ("low", "high"))
    return TABLE_2 / 100 * (high - low) + low


def our_raw(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean raw scores of the recorded methods, methods down, games across; where there are no rows, not a number."""
    lines = summarise(rows, METHODS)
    games = lines["dataset"].map({short_name(name): DatasetName.parse(name).world_name for name in rows["dataset"]})
    table = lines.assign(game=games).pivot(index="setting", columns="game", values="return")
    return table.reindex(index=list(METHODS), columns=list(TABLE_2.columns))


def table_2(rows: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Table 2 and below it ours, in one of UNITS, one decimal; a dash where nothing is recorded."""
    both = pd.concat({"the paper": paper_raw(), "here": our_raw(rows)})
    if unit not in UNITS:
        raise ValueError(f"unknown unit '{unit}'{did_you_mean(unit, UNITS)}")
    if unit != "raw score":
        both = both.apply(lambda column: normalised_score(str(column.name), column, paper=unit == "Mnih"))
    return both.map(lambda value: "-" if pd.isna(value) else f"{value:,.1f}").rename_axis(columns=None)


def protocols(rows: pd.DataFrame, config: Any) -> pd.DataFrame:
    """How the paper's numbers were made, beside how ours were; `config` is the `JointConfig` of our trainings."""
    from_ladders = DatasetName.parse(rows["dataset"].iloc[0]).kind == "ladder"
    steps, games = sorted(set(rows["train_steps"])), rows["returns"].map(lambda text: text.count(",") + 1)
    ours = {
        "data": "games of our own PPO policies, untrained to best, equally many steps of each",
        "transitions": f"at least {LADDER_STEPS:,} per game" if from_ladders else "a small sample per game",
        "gradient steps": " or ".join(f"{count:,}" for count in steps),
        "batch": f"{config.batch_size}",
        "network": "light: 16 and 32 filters, 256 units" if config.encoder in ("auto", "light") else "Nature CNN",
        "frames": "the data's mean frame taken off, divided by one standard deviation"
        if config.standardise_frames
        else "divided by 255",
        "how returns are learned": "both, in separate rows",
        "discount": "0.95",
        "return buckets": f"{config.buckets} from the data's lowest (at most 0) to its largest return",
        "target": "adaptive, δ = 0.1, and others by name",
        "random actions": "1%",
        "games per training": " or ".join(map(str, sorted(set(games)))),
        "trainings": seeds_in_words(rows),
        "a game is cut off after": _caps(rows),
        "human scores": "Wang et al. (2016), as in Hafner et al.; Mnih et al. (2015) beside the paper's table",
        "memory": "frames stay on disk; `make bench` measures the rest",
    }
    return pd.DataFrame({"the paper": ATARI_PROTOCOL, "here": ours})


def _caps(rows: pd.DataFrame) -> str:
    """The caps on a game's length, and how many games met theirs."""
    if "max_steps" not in rows or rows["max_steps"].isna().all():
        return "108,000 screens"
    caps = rows.groupby("dataset")["max_steps"].max()
    words = ", ".join(f"{short_name(name)} {caps[name]:,.0f}" for name in order_datasets(caps.index))
    cut = int(rows["cut_off"].sum()) if "cut_off" in rows else 0
    return f"{words} decisions ({cut:,} games of all rows were)"
