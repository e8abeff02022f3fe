"""Every notebook keeps the same promises. Each rule is a function, and each is also shown a notebook that breaks it."""

from __future__ import annotations

import ast
import copy
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.tools.notebooks import GUARD, KERNEL, LANGUAGE, NOTEBOOKS, all_notebooks, tidy
from brrcrl_lib.tools.parameters import ParameterError, parse_cell

Notebook = nbformat.NotebookNode
Rule = Callable[[Notebook, str], Iterator[str]]
"""A rule takes a notebook and its name, and yields what is wrong with it."""

PRIVATE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|private|mnt)/|\b[A-Z]:\\\\?\w")
NETWORK = re.compile(r"https?://|\b(?:urllib|requests|httpx|socket|wget|curl)\b|download")
LONGEST_LINE = 150
SHELL = re.compile(r"^\s*(?:!|%pip|%conda|%cd|%%bash|%%sh|%%script|%%!)", re.MULTILINE)


def code_cells(notebook: Notebook) -> list[Notebook]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Notebook) -> list[Notebook]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def texts(cell: Notebook) -> Iterator[str]:
    """Everything in a cell that a reader can read."""
    yield cell.source
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        yield from (str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/"))


def python_of(cell: Notebook) -> ast.Module:
    """The cell's syntax tree, without IPython's own lines."""
    return ast.parse("\n".join("" if re.match(r"\s*[%!]", line) else line for line in cell.source.splitlines()))


def heading(notebook: Notebook, name: str) -> Iterator[str]:
    """Title, question, minutes and place in the paper come first."""
    text = notebook.cells[0].source if notebook.cells[0].cell_type == "markdown" else ""
    if not re.match(rf"# {name[:2]} · \S", text):
        yield f"the first cell does not begin with '# {name[:2]} · Title'"
    for label in ("Question", "You will see", "In the paper"):
        if not re.search(rf"\*\*{label}:\*\* *\S", text):
            yield f"the first cell has no **{label}:** line"
    if not re.search(r"\*\*Time:\*\*.*\d.*minute", text):
        yield "the first cell has no **Time:** line with minutes"


def parameters(notebook: Notebook, name: str) -> Iterator[str]:
    """Annotated, commented literals, the preset first, all of them valid by their own comments."""
    tagged = [cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0] is not code_cells(notebook)[0]:
        yield "the first code cell, and no other, must be tagged 'parameters'"
        return
    try:
        declared = parse_cell(tagged[0].source)
    except ParameterError as error:
        yield str(error)
        return
    if next(iter(declared), None) != "preset" or declared["preset"].default != "recorded":
        yield "the first parameter is not preset, or its default is not 'recorded'"
    for parameter in declared.values():
        if not parameter.comment:
            yield f"parameter {parameter.name} has no comment"
        if problem := parameter.problem(parameter.default):
            yield f"the default breaks its own comment: {problem}"


def beginning(notebook: Notebook, name: str) -> Iterator[str]:
    """The very next code cell says which kernel is wanted, and checks the parameters under the notebook's own name."""
    cells = code_cells(notebook)
    if len(cells) < 2 or not cells[1].source.startswith(GUARD):
        yield "the second code cell does not start with the guard against a wrong kernel"
    if len(cells) < 2 or f'run = begin("{name}", globals())' not in cells[1].source:
        yield f'the second code cell does not call run = begin("{name}", globals())'


def short_cells(notebook: Notebook, name: str) -> Iterator[str]:
    """At most 30 lines a cell, a median of at most 8, and prose between: never more than two code cells in a row."""
    lengths = [len(cell.source.splitlines()) for cell in code_cells(notebook)]
    for number, length in enumerate(lengths, start=1):
        if length > 30:
            yield f"code cell {number} has {length} lines"
    if statistics.median(lengths) > 8:
        yield f"the median code cell has {statistics.median(lengths)} lines"
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    if "ccc" in kinds:
        yield "three code cells follow one another without prose"


def executed_in_order(notebook: Notebook, name: str) -> Iterator[str]:
    """Execution counts 1, 2, 3, ...: the stored outputs are those of one run from top to bottom."""
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}"
    if not outputs(notebook):
        yield "no output is stored"
    if any(output.output_type == "error" for output in outputs(notebook)):
        yield "a stored output is an error"
    if any(output.get("name") == "stderr" for output in outputs(notebook)):
        yield "a stored output came through stderr (a warning or a progress bar)"


def portable(notebook: Notebook, name: str) -> Iterator[str]:
    """Any Python 3 kernel runs it, and nothing ties it to one machine: no path of it in code, text or outputs."""
    if notebook.metadata.get("kernelspec") != KERNEL or KERNEL["name"] != "python3":
        yield "the kernel is not the kit's python3; `brrcrl notebooks refresh` sets it"
    if {**notebook.metadata.get("language_info", {}), "version": ""} != {**LANGUAGE, "version": ""}:
        yield "the metadata are not what JupyterLab writes, so that opening changes the file; refresh sets them"
    for number, cell in enumerate(notebook.cells, start=1):
        for kind in ("image/svg+xml", "application/pdf"):
            if any(kind in output.get("data", {}) for output in cell.get("outputs", [])):
                yield f"cell {number} stores {kind}; PNG only"
        if found := PRIVATE_PATH.search("\n".join(texts(cell))):
            yield f"cell {number} contains an absolute path ({found.group(0)}...)"


def self_contained(notebook: Notebook, name: str) -> Iterator[str]:
    """No network, no installs, no shell, no class of its own."""
    for number, cell in enumerate(code_cells(notebook), start=1):
        if found := NETWORK.search(cell.source):
            yield f"code cell {number} reaches for the network ({found.group(0)})"
        if found := SHELL.search(cell.source):
            yield f"code cell {number} leaves Python ({found.group(0).strip()})"
        elif any(isinstance(node, ast.ClassDef) for node in ast.walk(python_of(cell))):
            yield f"code cell {number} defines a class; that belongs into the library"


def ending(notebook: Notebook, name: str) -> Iterator[str]:
    """'What we saw' and then 'Try' close the notebook."""
    titles = re.findall(
        r"^## (.+?)\s*$", "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"), re.M
    )
    if titles[-2:] != ["What we saw", "Try"]:
        yield f"the last two sections are {titles[-2:]}, not 'What we saw' and 'Try'"


def figures(notebook: Notebook, name: str, folder: Path = ROOT / "figures") -> Iterator[str]:
    """Every figure that the notebook saves is there to be looked at."""
    for cell in code_cells(notebook):
        for figure in re.findall(r"save_figure\([^)]*?[\"'](\w+)[\"']", cell.source):
            if not (folder / f"{figure}.png").is_file():
                yield f"figures/{figure}.png is missing"


def links(notebook: Notebook, name: str) -> Iterator[str]:
    """What the prose links to exists beside the notebook."""
    for number, cell in enumerate(notebook.cells, start=1):
        for target in re.findall(r"\]\(([^()\s#]+)(?:#[^)]*)?\)", cell.source if cell.cell_type == "markdown" else ""):
            if not target.startswith("http") and not (NOTEBOOKS / target).exists():
                yield f"cell {number} links to {target}, which is not there"


def short_lines(notebook: Notebook, name: str) -> Iterator[str]:
    """What is printed fits a page: JupyterLab does not break lines."""
    for number, cell in enumerate(notebook.cells, start=1):
        printed = "".join(output.get("text", "") for output in cell.get("outputs", []))
        longest = max(map(len, printed.splitlines()), default=0)
        if longest > LONGEST_LINE:
            yield f"cell {number} prints a line of {longest} characters; run.say breaks lines"


RULES: list[Rule] = [
    heading, parameters, beginning, short_cells, executed_in_order, portable, self_contained, ending, figures, links,
    short_lines,
]  # fmt: skip


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: path.stem)
def test_notebook_keeps_the_contract(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    problems = [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(notebook, path.stem)]
    assert not problems, "\n".join([path.name, *problems])


def test_the_notebooks_are_found() -> None:
    assert all_notebooks(), f"no notebook in {NOTEBOOKS}"


# -- each rule, shown a notebook that breaks it ------------------------------------------------------------------


def good_notebook() -> Notebook:
    """The smallest notebook that keeps every promise."""
    first = (
        "# 07 · A title\n\n**Question:** why?\n**You will see:** that.\n**Time:** 2 minutes\n**In the paper:** Fig. 1"
    )
    declared = 'preset: str = "recorded"  # one of recorded, smoke: size\ndelta: float = 0.1  # in (0, 1): share'
    cells = [
        new_markdown_cell(first),
        new_code_cell(declared, metadata={"tags": ["parameters"]}),
        new_code_cell(f'{GUARD}from brrcrl_lib.tools.notebooks import begin\n\nrun = begin("07_good", globals())'),
        new_markdown_cell("Prose with a link to https://example.org."),
        new_code_cell("print(1 + 1)", outputs=[new_output("stream", name="stdout", text="2\n")]),
        new_markdown_cell("## What we saw\nTwo."),
        new_markdown_cell("## Try\nThree."),
    ]
    notebook = new_notebook(cells=cells)
    tidy(notebook)
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number
    return notebook


def last_code(notebook: Notebook) -> Notebook:
    return code_cells(notebook)[-1]


def put(source: str) -> Callable[[Notebook], None]:
    """Replace the last code cell's source."""
    return lambda notebook: last_code(notebook).update(source=source)


def declare(source: str) -> Callable[[Notebook], None]:
    """Replace the parameters cell's source."""
    return lambda notebook: code_cells(notebook)[0].update(source=source)


def head(old: str, new: str) -> Callable[[Notebook], None]:
    """Replace a piece of the first cell."""

    def change(notebook: Notebook) -> None:
        assert old in notebook.cells[0].source
        notebook.cells[0].source = notebook.cells[0].source.replace(old, new)

    return change


def output(kind: str, **fields: object) -> Callable[[Notebook], None]:
    """Add an output to the last code cell."""
    return lambda notebook: last_code(notebook).outputs.append(new_output(kind, **fields))


PRESET = 'preset: str = "recorded"  # one of recorded, smoke: size\n'

BREAKS: list[tuple[Rule, str, Callable[[Notebook], object]]] = [
    (heading, "'# 07 · Title'", head("# 07 ·", "# 08 ·")),
    (heading, "**Question:**", head("**Question:** why?", "")),
    (heading, "**You will see:**", head("**You will see:**", "See")),
    (heading, "**In the paper:**", head("**In the paper:** Fig. 1", "**In the paper:**")),
    (heading, "minutes", head("2 minutes", "quick")),
    (parameters, "tagged 'parameters'", lambda notebook: code_cells(notebook)[0].metadata.pop("tags")),
    (parameters, "preset", declare("delta: float = 0.1  # in (0, 1): share")),
    (parameters, "preset", declare('preset: str = "smoke"  # one of recorded, smoke: size')),
    (parameters, "delta has no comment", declare(PRESET + "delta: float = 0.1")),
    (parameters, "name: type = literal", declare(PRESET + "delta = 0.1  # share")),
    (parameters, "not a literal", declare(PRESET + "delta: float = 1 / 3  # share")),
    (parameters, "breaks its own comment", declare(PRESET + "delta: float = 1.5  # in (0, 1): share")),
    (beginning, "begin(", lambda notebook: code_cells(notebook)[1].update(source='run = begin("08_bad", globals())')),
    (beginning, "guard", lambda n: code_cells(n)[1].update(source='run = begin("07_good", globals())')),
    (short_cells, "31 lines", put("\n".join(["x = 1"] * 31))),
    (short_cells, "median", lambda n: [cell.update(source="\n".join(["x = 1"] * 9)) for cell in code_cells(n)]),
    (short_cells, "without prose", lambda notebook: notebook.cells.pop(3)),
    (executed_in_order, "[1, 2, None]", lambda notebook: last_code(notebook).update(execution_count=None)),
    (executed_in_order, "[1, 2, 5]", lambda notebook: last_code(notebook).update(execution_count=5)),
    (executed_in_order, "no output", lambda notebook: last_code(notebook).update(outputs=[])),
    (executed_in_order, "error", output("error", ename="ValueError", evalue="no", traceback=[])),
    (executed_in_order, "stderr", output("stream", name="stderr", text="100%")),
    (portable, "kernel", lambda notebook: notebook.metadata.pop("kernelspec")),
    (portable, "kernel", lambda notebook: notebook.metadata.kernelspec.update(name="my-env")),
    (portable, "opening changes", lambda notebook: notebook.metadata.language_info.pop("codemirror_mode")),
    (portable, "absolute path", put('print("/home/me/data.csv")')),
    (portable, "absolute path", put(r'print("C:\\data")')),
    (portable, "absolute path", output("stream", name="stdout", text="saved to /tmp/x.png\n")),
    (portable, "absolute path", output("display_data", data={"text/plain": "'/Users/me/x'"})),
    (portable, "image/svg+xml", output("display_data", data={"image/svg+xml": "<svg/>"})),
    (portable, "application/pdf", output("display_data", data={"application/pdf": "x"})),
    (self_contained, "network", put('print("http://example.org")')),
    (self_contained, "network", put("import requests")),
    (self_contained, "network", put('minari.download_dataset("x")')),
    (self_contained, "!", put("!pip install torch")),
    (self_contained, "%pip", put("%pip install torch")),
    (self_contained, "%cd", put("%cd notebooks")),
    (self_contained, "class", put("class Policy:\n    pass")),
    (ending, "What we saw", lambda notebook: notebook.cells.pop(-2)),
    (ending, "Try", lambda notebook: notebook.cells.pop(-1)),
    (ending, "Extra", lambda notebook: notebook.cells.append(new_markdown_cell("## Extra"))),
    (links, "../NOWHERE.md", lambda n: n.cells.insert(3, new_markdown_cell("See [it](../NOWHERE.md#here)."))),
    (short_lines, "prints a line of 151 characters", output("stream", name="stdout", text="x" * 151)),
    (figures, "never_drawn.png", put('run.save_figure(fig, "never_drawn")')),
]


def test_a_good_notebook_breaks_no_rule() -> None:
    assert [problem for rule in RULES for problem in rule(good_notebook(), "07_good")] == []


@pytest.mark.parametrize(("rule", "message", "change"), BREAKS, ids=lambda item: getattr(item, "__name__", item))
def test_a_broken_promise_is_noticed(rule: Rule, message: str, change: Callable[[Notebook], object]) -> None:
    notebook = copy.deepcopy(good_notebook())
    change(notebook)
    assert any(message in problem for problem in rule(notebook, "07_good"))


def test_every_rule_is_shown_a_broken_notebook() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(RULES)
