"""The 18 claims: complete, computed from rows, and said in the README and in notebook 14 as they are."""

from __future__ import annotations

import csv
import json
import re
from statistics import fmean

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from notebook_text import printed
from scipy import stats

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.study.claims import paper_claims
from brrcrl_lib.study.claims.decisions import WORDS, Decision
from brrcrl_lib.study.claims.exact import Fact
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.paper_claims import CLAIMS, NOT_TESTED, Evidence, Judged, full_table, judge_claims
from brrcrl_lib.study.claims.statistics import detectable
from brrcrl_lib.study.experiments.results import RESULTS
from brrcrl_lib.study.figures.experiments import VERDICT_STYLES, draw_verdicts
from brrcrl_lib.tools.notebooks import all_notebooks
from brrcrl_lib.tools.readme import BEGIN, END, ReadmeConfig, between_markers, claims_table, write_readme


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    return {found.claim.key: found for found in judge_claims(Evidence())}


def test_there_are_eighteen_and_each_says_everything() -> None:
    assert len(CLAIMS) == 18 == len({claim.key for claim in CLAIMS})
    numbers = {path.stem[:2] for path in all_notebooks()}
    for claim in CLAIMS:
        assert claim.short and claim.says and claim.where and claim.test and claim.change
        assert claim.notebook in numbers and set(claim.interests) <= set(INTERESTS)


def test_every_verdict_is_one_of_the_words(judged: dict[str, Judged]) -> None:
    for found in judged.values():
        assert found.word in (*WORDS, NOT_TESTED) and found.word in VERDICT_STYLES
        assert len(found.sentence.split()) <= 20, found.sentence


def test_the_causal_claim_is_computed_from_the_shipped_worlds(judged: dict[str, Judged]) -> None:
    with (RESULTS / "causal_shift.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["shift"], row["part"]) == ("habit", "all")]
    found = judged["causal"].found
    assert isinstance(found, Decision) and len(found.effects) == 3
    for name, effect in found.effects.items():
        gains: dict[str, list[float]] = {}
        for row in rows:
            if row["scenario"].replace("_", " ") == name and row["strength"] != "0.0":
                gain = 100 * (float(row["vanilla"]) - float(row["bayes, cloned"]))
                gains.setdefault(row["seed"], []).append(gain)
        worlds = [fmean(values) for values in gains.values()]
        assert effect.estimate == pytest.approx(fmean(worlds)) and effect.n_ours == len(worlds) == 20
        assert effect.p == pytest.approx(stats.ttest_1samp(worlds, 0).pvalue)


def test_exact_claims_are_computed_from_the_shipped_survey(judged: dict[str, Judged]) -> None:
    survey = pd.read_csv(RESULTS / "theory_audit.csv")
    assert (judged["kl bound"].word == "holds") == bool((survey.kl_ratio_p100 <= 1 + 1e-9).all())
    assert (judged["never worse"].word == "does not hold") == bool((survey.violated > 0).any())
    assert f"{survey.violated.sum():,} of {survey.mdps.sum():,}" in judged["never worse"].sentence
    assert judged["boltzmann"].word == "holds" and isinstance(judged["time"].found, Fact)
    bench = json.loads((RESULTS / "bench.json").read_text())
    slowest = max(bench[world]["acting"]["optimizers"]["cem (default)"]["ms"] for world in ("hopper", "walker2d"))
    assert f"{slowest:.1f} ms with CEM" in judged["time"].sentence


def test_toy_claims_are_computed_from_the_shipped_rows(judged: dict[str, Judged]) -> None:
    bias = pd.read_csv(RESULTS / "sampling_bias.csv").query(
        "protocol == 'standard' and gap == 2.0 and rare_samples == 3"
    )
    found = judged["sampling bias"].found
    assert isinstance(found, Decision)
    for scenario, rows in bias.groupby("scenario"):
        effect = found.effects[scenario.replace("_", " ")]
        assert effect.estimate == pytest.approx(100 * (rows.vanilla - rows.bayes).mean())
        assert effect.p == pytest.approx(stats.ttest_rel(rows.vanilla, rows.bayes).pvalue)
    stairs = pd.read_csv(RESULTS / "stairs.csv").query("slip_at == 4 and berries == 'beside'")
    sides = [stairs.query("source == 'joint' and rule == 'adaptive' and delta == 0.1"),
             stairs.query("source == 'vanilla' and rule == 'schedule'"),
             stairs.query("source == 'exact' and rule == 'adaptive' and delta == 0.1")]  # fmt: skip
    ours, theirs, ideal = (side.counted_return.to_numpy() for side in sides)
    slip = judged["after a slip"].found
    assert isinstance(slip, Decision)
    effect = slip.effects["berries beside the stairs (return, against schedule)"]
    assert effect.estimate == pytest.approx(100 * (ours.mean() - theirs.mean()) / ideal.mean())


def test_the_mean_effect_is_that_of_its_comparisons(judged: dict[str, Judged]) -> None:
    for found in judged.values():
        if found.effect is None:
            continue
        groups: dict[str, list[float]] = {}
        for name, effect in found.headline.effects.items():  # type: ignore[union-attr]
            if effect.error is not None:
                groups.setdefault(name.split(" (")[0], []).append(effect.estimate)
        assert found.effect.estimate == pytest.approx(fmean(fmean(values) for values in groups.values()))
        if found.paper_effect is not None:
            assert found.relative is not None
            assert found.relative.estimate == pytest.approx(found.effect.estimate / found.paper_effect)


def test_rows_of_another_source_give_another_verdict() -> None:
    other = {found.claim.key: found for found in judge_claims(Evidence("d4rl"))}
    assert other["kl bound"].word == "holds"  # needs no rows
    if Evidence("d4rl").rows.empty:
        assert other["target rule"].word == other["match"].word == other["games"].word == NOT_TESTED


def test_new_versions_of_the_datasets_redraw_the_table(tmp_path) -> None:
    """Five seeds of -v1 in which adaptive targets earn 30 points more: the claim about target rules then holds."""
    rows = pd.read_csv(RESULTS / "targets.csv", dtype={"key": str})
    chosen = rows[
        (rows.dataset == "brrcrl/walker2d/medium-replay-v0") & (rows.objective == "authors") & (rows.train_seed == 0)
    ]
    made = []
    for seed in range(5):
        for number, line in enumerate(chosen.to_dict("records")):
            value = (2000.0 if line["target"] == "adaptive" else 600.0) + 10 * seed * (number + 1)
            made.append({**line, "dataset": "brrcrl/walker2d/medium-replay-v1", "train_seed": seed,
                         "key": f"{seed:06d}{number:06d}", "train_key": f"new{seed}", "return_mean": value,
                         "returns": json.dumps([value] * 20), "score": value / 45.9})  # fmt: skip

    pd.DataFrame(made).to_csv(tmp_path / "targets.csv", index=False)
    claim = next(claim for claim in CLAIMS if claim.key == "target rule")
    found = paper_claims.judge_claim(claim, Evidence(folder=tmp_path))
    assert found.word == "holds" and found.count == "5 seeds"
    assert next(iter(found.found.effects)).startswith("walker2d medium-replay")  # type: ignore[union-attr]


def test_the_full_table_has_a_line_for_each(judged: dict[str, Judged]) -> None:
    table = full_table(list(judged.values()))
    assert len(table) == 18 and table.notna().all(axis=None)
    assert table["verdict"].tolist() == [found.word for found in judged.values()]


def test_the_figure_shows_every_claim(judged: dict[str, Judged]) -> None:
    figure, axis = plt.subplots()
    draw_verdicts(axis, list(judged.values()))
    assert [label.get_text().removesuffix(" *") for label in axis.get_yticklabels()] == [c.short for c in CLAIMS]
    marks = [(float(np.atleast_1d(line.get_xdata())[0]), line.get_ydata()[0]) for line in axis.lines
             if len(line.get_xdata()) == 1 and line.get_marker() not in "<>"]  # fmt: skip
    places = {position: x for x, position in marks}
    for position, found in enumerate(judged.values()):
        if found.relative is not None and abs(found.relative.estimate) < 4:
            assert places[position] == pytest.approx(found.relative.estimate)
    plt.close(figure)


def test_the_answer_to_the_third_exercise() -> None:
    assert (round(detectable(2, 0.05 / 5)), round(detectable(4, 0.05 / 5))) == (13, 6)


def test_the_notebook_prints_every_decision(judged: dict[str, Judged]) -> None:
    text = printed("14_verdict")
    for found in judged.values():
        if isinstance(found.found, Decision):
            assert str(found.found) in text


# -- the README --------------------------------------------------------------------------------------------------


def test_the_readme_says_what_the_rows_say() -> None:
    page = (ROOT / "README.md").read_text()
    assert between_markers(page) == claims_table(), "run `brrcrl claims readme`"
    for line in between_markers(page).splitlines()[2:]:
        assert len(re.split(r"(?<!\\)\|", line)) == 6, line


def test_the_command_writes_between_its_markers_only(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("brrcrl_lib.tools.readme.claims_table", lambda: "| new |")
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert write_readme(ReadmeConfig(page)) == 0
    assert page.read_text() == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(KitError, match="no place for the table of claims"):
        write_readme(ReadmeConfig(page))
    assert page.read_text() == "no markers"
