"""The parameters cell, read and enforced."""

from __future__ import annotations

import math
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook

from brrcrl_lib.tools.parameters import Parameter, ParameterError, check, declared_parameters, parse_cell

CELL = """\
preset: str = "recorded"  # one of recorded, smoke, laptop, released, paper: what to compute
delta: float = 0.1  # in (0, 1): share of outcomes that the agent may hope for
episodes: int = 20  # in [1, inf): how many
seeds: list[int] = [0, 1]  # in [0, 100]: one run each
render: bool = False  # draw every step
label: str = "a=b # c"  # anything
dataset: str = "brrcrl/hopper/medium-v0"  # a dataset id
"""


@pytest.fixture
def declared() -> dict[str, Parameter]:
    return parse_cell(CELL)


def test_a_cell_is_read_in_order_with_types_defaults_and_comments(declared: dict[str, Parameter]) -> None:
    assert list(declared) == ["preset", "delta", "episodes", "seeds", "render", "label", "dataset"]
    assert declared["delta"] == Parameter(
        "delta", "float", 0.1, "in (0, 1): share of outcomes that the agent may hope for"
    )
    assert declared["seeds"].default == [0, 1] and declared["seeds"].element == "int"
    assert declared["label"].default == "a=b # c" and declared["label"].comment == "anything"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "line 1 of the parameters cell is not `name: type = literal`"),
        ("import os", "line 1"),
        ("x: int", "parameter x needs one of the types"),
        ("x: dict = {}", "parameter x needs one of the types int, float, bool, str or a list of one"),
        ("x: int = 1\ny: int = x", "the default of parameter y is not a literal"),
        ("x: float = 2**0.5", "not a literal"),
        ("x: int = {[]: 1}", "not a literal"),
        ("x: int = (", "the parameters cell is not Python"),
        ("x: str = 'open", "the parameters cell is not Python"),
        ('x: str = """open', "the parameters cell is not Python"),
        ("x: int = 1\n  y: int = 2", "the parameters cell is not Python"),
        ("x: int = \0", "the parameters cell is not Python"),
    ],
)
def test_anything_but_annotated_literals_is_refused(source: str, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_cell(source)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("delta", "0.2", 0.2),
        ("delta", "1e-3", 0.001),
        ("delta", "1", 1.0),
        ("episodes", "7", 7),
        ("seeds", "[3, 4]", [3, 4]),
        ("render", "True", True),
        ("label", "12", "12"),
        ("episodes", "many", "many"),
        ("seeds", "[1, 'a'+1]", "[1, 'a'+1]"),
    ],
)
def test_command_line_texts_become_values_of_the_declared_type(
    declared: dict[str, Parameter], name: str, text: str, value: object
) -> None:
    parsed = declared[name].parse(text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("delta", 0, "delta must lie in (0, 1), for example 0.1; got 0"),
        ("delta", 1.0, "must lie in (0, 1)"),
        ("delta", 1.5, "got 1.5"),
        ("delta", math.nan, "delta takes a float, for example 0.1; got nan"),
        ("delta", math.inf, "must lie in (0, 1)"),
        ("delta", "0.1", "delta takes a float, for example 0.1; got '0.1'"),
        ("delta", True, "takes a float"),
        ("delta", None, "takes a float"),
        ("episodes", 0, "must lie in [1, inf)"),
        ("episodes", 2.0, "episodes takes an int, for example 20; got 2.0"),
        ("episodes", True, "takes an int"),
        ("seeds", 3, "seeds takes a list[int], for example [0, 1]; got 3"),
        ("seeds", [0, 101], "must lie in [0, 100]"),
        ("seeds", [0, "1"], "got '1'"),
        ("render", 1, "render takes a bool"),
        ("preset", "smok", "preset cannot be 'smok'; did you mean 'smoke'? (valid: recorded, smoke, laptop, released,"),
        ("dataset", "brrcrl/hopper/medum-v0", "no dataset 'brrcrl/hopper/medum-v0'"),
        ("detla", 0.1, "unknown parameter 'detla'; did you mean 'delta'?"),
        ("zzzzzz", 1, "unknown parameter 'zzzzzz' (valid: preset, delta"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(
    declared: dict[str, Parameter], name: str, value: object, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        check(declared, {name: value})
    assert message in str(caught.value)


def test_all_problems_are_named_at_once(declared: dict[str, Parameter]) -> None:
    with pytest.raises(ParameterError) as caught:
        check(declared, {"delta": 2.0, "preset": "smoke", "episods": 3})
    assert "episodes" in str(caught.value) and "delta must lie" in str(caught.value)
    assert "preset" not in str(caught.value).replace("(valid: preset", "")


@given(value=st.floats(), closed_low=st.booleans(), closed_high=st.booleans())
def test_ranges_mean_what_their_brackets_say(value: float, closed_low: bool, closed_high: bool) -> None:
    comment = f"in {'[' if closed_low else '('}-1, 2{']' if closed_high else ')'}: x"
    inside = -1 < value < 2 or (closed_low and value == -1) or (closed_high and value == 2)
    assert (Parameter("x", "float", 0.0, comment).problem(value) is None) == inside


@given(value=st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.lists(st.integers())))
def test_a_value_survives_the_way_through_the_command_line(value: object) -> None:
    kind = "list[int]" if isinstance(value, list) else type(value).__name__
    parameter = Parameter("x", kind, value, "")
    assert parameter.parse(str(value)) == value and parameter.problem(value) is None


def test_an_installed_dataset_is_accepted(
    declared: dict[str, Parameter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    folder = tmp_path / "brrcrl/hopper/medium-v0/data"
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text("{}")
    check(declared, {"dataset": "brrcrl/hopper/medium-v0"})
    with pytest.raises(ParameterError, match="did you mean 'brrcrl/hopper/medium-v0'"):
        check(declared, {"dataset": "brrcrl/hopper/medum-v0"})


def test_the_tagged_cell_is_found_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "01_x.ipynb"
    tagged = new_code_cell(CELL, metadata={"tags": ["parameters"]})
    nbformat.write(new_notebook(cells=[new_code_cell("y = 1"), tagged]), path)
    assert declared_parameters(path) == parse_cell(CELL)
    nbformat.write(new_notebook(cells=[new_code_cell(CELL)]), path)
    with pytest.raises(ParameterError, match=r"01_x\.ipynb has no cell tagged 'parameters'"):
        declared_parameters(path)


def test_a_file_that_is_no_notebook_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "01_x.ipynb"
    cell = '{"cell_type": "code", "source": [], "metadata": {"tags": 3}}'
    for content in (
        *(
            b"not json",
            b"[]",
            b'{"worksheets": []}',
            b"\xff\xfe\x00",
            b'{"cells": []}',
            b'{"cells": ["x"]}',
            b"[" * 9_999,
        ),
        *(f'{{"cells": [{wrong}]}}'.encode() for wrong in (cell, "{}", '{"source": "x", "metadata": 3}')),
    ):
        path.write_bytes(content)
        with pytest.raises(ParameterError, match=r"01_x\.ipynb is not a notebook"):
            declared_parameters(path)
