"""What the bench times is what it says: sizes arrive where they should, and the figure shows the table."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from brrcrl_lib.tools.bench.frames import benchmark_frames
from brrcrl_lib.tools.bench.growth import DECISION, TRAINING, USUAL, decision, draw_growth, milliseconds, training_step


def test_decisions_have_the_sizes_asked_for() -> None:
    solution = decision({**USUAL, "states": 3, "actions": 5, "samples": 7})()
    assert solution.actions.shape == (3, 5) and solution.energies.shape == (3,)


def test_a_training_step_leaves_gradients() -> None:
    step = training_step({**USUAL, "batch": 4, "negatives": 2, "buckets": 9})
    (model,) = (cell.cell_contents for cell in step.__closure__ or () if hasattr(cell.cell_contents, "parameters"))
    step()
    assert model.buckets.count == 9
    assert all(weight.grad is not None for weight in model.parameters())


def test_every_grid_holds_the_usual_size() -> None:
    for grid in (DECISION, TRAINING):
        assert all(USUAL[name] in values for name, values in grid.items())


def test_the_median_of_the_calls_counts(monkeypatch) -> None:
    clock = iter([0, 1, 0, 5, 0, 2])
    monkeypatch.setattr("brrcrl_lib.tools.bench.growth.time.perf_counter", lambda: next(clock))
    assert milliseconds(lambda: None, 3) == pytest.approx(2000)


def test_the_figure_is_in_multiples_of_the_usual_size() -> None:
    figure, axis = plt.subplots()
    table = {name: {str(value): float(value) for value in values} for name, values in DECISION.items()}
    draw_growth(axis, table)
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines["samples (usually 48)"].get_xdata()) == [0.25, 1, 4, 16]
    assert list(lines["samples (usually 48)"].get_ydata()) == [12, 48, 192, 768]
    plt.close(figure)


def test_the_benchmark_measures_both_sides_in_one_run():
    report = benchmark_frames(steps=600, repeats=20, large_steps=20_000)
    assert report["bytes_per_transition"] < 7_200
    assert report["store_ms"] > 0 and report["in_memory_ms"] > 0
    assert report["large"]["steps"] == 20_000 and report["large"]["open_seconds"] < 1
    assert report["five_million"]["disk_gigabytes"] == pytest.approx(35.3, abs=0.1)
