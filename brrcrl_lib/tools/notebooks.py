"""Run notebooks: checked before they start, watched while they run, summed up in a table."""

from __future__ import annotations

import ast
import multiprocessing
import os
import platform
import re
import signal
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brrcrl_lib.base.config import PRESETS, did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT, atomic_path
from brrcrl_lib.tools.parameters import ParameterError, check, declared_parameters, read_cells

if TYPE_CHECKING:
    import nbformat
    from matplotlib.figure import Figure

NOTEBOOKS = Path(os.environ.get("BRRCRL_NOTEBOOKS") or ROOT / "notebooks")
CELL_TIMEOUT = 600  # seconds; laptop and paper runs have none
GUARD = """\
from importlib.util import find_spec

assert find_spec("brrcrl_lib"), "Wrong kernel: choose Kernel > Change Kernel > BR-RCRL kit, which `make lab` sets up."
"""
"""How the cell that calls `begin` starts: a kernel without the kit stops there with one sentence."""
WIDTH = 110
"""Characters of a line that a notebook prints; JupyterLab does not break longer ones."""
KERNEL_ARGUMENTS = ["--log-level=ERROR"]  # a kernel's remarks about its own transport are no news to the reader
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class NotebookRun:
    """What `begin` hands to a notebook: its checked parameters, and where its figures go."""

    name: str
    preset: str
    device: Any  # torch.device
    parameters: Mapping[str, Any]

    @property
    def recorded(self) -> bool:
        return self.preset == "recorded"

    @property
    def smoke(self) -> bool:
        return self.preset == "smoke"

    @property
    def figures(self) -> Path:
        """Where this run's pictures go."""
        from brrcrl_lib.study.figures.style import figures_of

        return figures_of(self.preset)

    def say(self, *parts: object) -> None:
        """Print a sentence, broken into lines that fit a page; what follows `- ` or `1. ` is indented."""
        text = " ".join(map(str, parts))
        indent = re.match(r"(- |\d\. )?", text).end()  # type: ignore[union-attr]
        print(textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False))

    def save_figure(self, figure: Figure, name: str) -> None:
        """Write the picture, and let the notebook show it with its title as alternative text."""
        from brrcrl_lib.study.figures.showing import show_with_alt_text
        from brrcrl_lib.study.figures.style import save_figure

        show_with_alt_text(figure, name)
        save_figure(figure, name, self.preset)


def begin(name: str, namespace: Mapping[str, Any]) -> NotebookRun:
    """Check the parameters that this kernel holds, set the house style, and say what is about to happen.

    Call it in the cell after the parameters, behind GUARD: `run = begin("02_stair_climbing_ood", globals())`.
    """
    declared = declared_parameters(NOTEBOOKS / f"{name}.ipynb")
    values = {key: namespace[key] for key in declared if key in namespace}
    check(declared, {**values, **{key: None for key in _injected_names(namespace) if key not in declared}})
    from brrcrl_lib.base.devices import pick_device, use_one_thread
    from brrcrl_lib.study.figures.style import use_house_style

    use_house_style()
    use_one_thread()
    device = pick_device(values.get("device", "cpu"))
    preset = values.get("preset", "recorded")
    dataset = values.get("dataset") or values.get("game", "none needed")
    run = NotebookRun(name, preset, device, values)
    run.say(f"preset: {preset} ({PRESETS[preset]}) | device: {device} | dataset: {dataset}")
    return run


def _injected_names(namespace: Mapping[str, Any]) -> list[str]:
    """Names that papermill injected: its cell starts with `# Parameters` and is the last one that does."""
    cells = [source for source in namespace.get("In", []) if source.startswith("# Parameters")]
    statements = ast.parse(cells[-1]).body if cells else []
    targets = [node.targets[0] for node in statements if isinstance(node, ast.Assign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


# -- finding -----------------------------------------------------------------------------------------------------


def all_notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def find_notebooks(wanted: Sequence[str], folder: Path = NOTEBOOKS) -> list[Path]:
    """Notebooks by number (`02`, `2`), name or file name; all of them if nothing is named."""
    notebooks = all_notebooks(folder)
    if not wanted:
        return notebooks
    chosen = []
    for word in wanted:
        stem = Path(word).name.removesuffix(".ipynb")
        number = f"{int(stem):02d}_" if stem.isdigit() else None
        matches = [path for path in notebooks if path.stem == stem or (number and path.stem.startswith(number))]
        if not matches:
            raise ParameterError(f"no notebook '{word}'{did_you_mean(stem, [path.stem for path in notebooks])}")
        chosen += matches
    return chosen


def question(path: Path) -> str:
    """What a notebook asks, from the `**Question:**` line of its first cell."""
    found = re.search(r"\*\*Question:\*\*\s*(.+)", read_cells(path)[0]["source"])
    return found.group(1).strip() if found else ""


# -- running -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """One row of the closing table."""

    notebook: str
    preset: str
    seconds: float
    error: str = ""

    @property
    def status(self) -> str:
        return "failed" if self.error else "ok"


def plan(notebooks: Sequence[Path], preset: str | None, texts: Mapping[str, str]) -> list[tuple[Path, dict[str, Any]]]:
    """The parameters each notebook will get. Refuses the whole request if any part of it is wrong."""
    planned = []
    for path in notebooks:
        declared = declared_parameters(path)
        given = {key: declared[key].parse(text) if key in declared else text for key, text in texts.items()}
        if "preset" not in declared:
            raise ParameterError(f"{path.name} declares no preset in its parameters cell")
        if preset is not None:
            given["preset"] = preset
        try:
            check(declared, {name: parameter.default for name, parameter in declared.items()} | given)
        except ParameterError as error:
            raise ParameterError(f"{path.stem}: {error}") from None
        planned.append((path, given))
    return planned


def run_notebooks(planned: Sequence[tuple[Path, dict[str, Any]]], out: Path, jobs: int = 1) -> list[Outcome]:
    """Execute each notebook with papermill into `out`; a failure is reported and the next one runs.

    `jobs` of them run at a time; they are reported in their order, whichever ends first.
    """
    os.environ["BRRCRL_QUIET"] = "1"  # for the kernels: no progress bars in stored outputs
    outcomes = []
    with ExitStack() as stack:
        if jobs > 1:
            deaf = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process, which ends its workers
            run_all: Any = stack.enter_context(multiprocessing.Pool(jobs, signal.signal, deaf)).imap
        else:
            run_all = map
        ended = run_all(partial(_outcome, out), planned)
        for position, (path, parameters) in enumerate(planned, start=1):
            print(f"[{position}/{len(planned)}] {path.stem} ({_preset(path, parameters)})", flush=True)
            outcomes.append(next(ended))
            print(f"      {outcomes[-1].status} after {outcomes[-1].seconds:.0f} s", flush=True)
    return outcomes


def _outcome(out: Path, request: tuple[Path, dict[str, Any]]) -> Outcome:
    path, parameters = request
    preset = _preset(path, parameters)
    started = time.perf_counter()
    error = _execute(path, out / preset / path.name, parameters, preset)
    return Outcome(path.stem, preset, time.perf_counter() - started, error)


def _preset(path: Path, parameters: Mapping[str, Any]) -> str:
    return parameters.get("preset") or declared_parameters(path)["preset"].default


class _Lines:
    """Where no terminal redraws a progress bar: each of its states on a line of its own."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip("\r\n"), flush=True)

    def flush(self) -> None:
        pass


def _execute(path: Path, target: Path, parameters: dict[str, Any], preset: str) -> str:
    """Run one notebook; return what went wrong, or an empty string."""
    import papermill

    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    terminal = sys.stderr.isatty()
    bar = {
        "desc": f"      {path.stem}",
        "bar_format": "{desc}: cell {n_fmt} of {total_fmt}, {elapsed}",
        "leave": False,
        "file": sys.stderr if terminal else _Lines(),
        "mininterval": 0.1 if terminal else 10,
    }
    try:
        papermill.execute_notebook(
            str(path),
            str(target),
            parameters=parameters,
            kernel_name="python3",
            language="python",
            progress_bar=bar,
            extra_arguments=KERNEL_ARGUMENTS,
            cwd=str(path.parent),
            execution_timeout=CELL_TIMEOUT if preset in ("recorded", "smoke") else None,
        )
    except papermill.PapermillExecutionError as error:
        return f"{_failing_cell(target)}: {error.ename}: {_first_line(error.evalue)}"
    except Exception as error:  # a dead kernel, a cell over time, a full disk: the next notebook still runs
        return f"{_failing_cell(target)}: {type(error).__name__}: {_first_line(str(error))}"
    return ""


def _failing_cell(executed: Path) -> str:
    """'cell 7 `first line of it`', numbered as in the notebook itself: the last cell that papermill started."""
    cells = read_cells(executed) if executed.exists() else []
    added = {"injected-parameters", "papermill-error-cell-tag"}
    own = [cell for cell in cells if not added & set(cell["metadata"].get("tags", []))]
    for number, cell in reversed(list(enumerate(own, start=1))):
        if cell["metadata"].get("papermill", {}).get("start_time"):
            return f"cell {number} `{_first_line(cell['source'])}`"
    return "start-up"


def _first_line(text: str) -> str:
    lines = [line.strip() for line in ANSI.sub("", text).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def summary(outcomes: Sequence[Outcome]) -> str:
    """The closing table: notebook, preset, seconds, status, and where and why a notebook failed."""
    width = max([len("notebook"), *(len(outcome.notebook) for outcome in outcomes)])
    lines = [f"{'notebook':<{width}}  {'preset':<8}  {'seconds':>7}  status"]
    for outcome in outcomes:
        row = f"{outcome.notebook:<{width}}  {outcome.preset:<8}  {outcome.seconds:>7.1f}  {outcome.status}"
        lines.append(row + (f" in {outcome.error}" if outcome.error else ""))
    return "\n".join(lines)


# -- refreshing the stored outputs -------------------------------------------------------------------------------

KERNEL = {"display_name": "BR-RCRL kit", "language": "python", "name": "python3"}
"""The name that every Jupyter knows, and the title that `make lab` gives to the kernel of this kit."""
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
    "version": platform.python_version(),
}
"""What JupyterLab itself writes into a notebook that it opens, so that looking changes nothing."""


class NotebookFailed(KitError):
    """A notebook did not run to its end; the message says where and why."""


def refresh(path: Path) -> None:
    """Execute a notebook with its defaults and store the outputs in place, as readers and nbval will see them."""
    import nbformat
    from nbclient import NotebookClient

    from brrcrl_lib.study.figures.style import FIGURES

    env = {"BRRCRL_FIGURES": str(FIGURES), **os.environ, "BRRCRL_QUIET": "1"}
    declared_parameters(path)
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # the library has its own kinds, and plain ones
        raise ParameterError(f"{path.name} is no notebook of format 4: {_first_line(str(error))}") from None
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources=resources)
    client.coalesce_streams = True  # how a print is cut into messages is chance
    client.extra_arguments = KERNEL_ARGUMENTS
    started: list[int] = []
    client.on_cell_start = lambda cell, cell_index: started.append(cell_index)
    try:
        client.execute(env=env)
    except Exception as error:  # a cell that raises, a dead kernel, a cell over time
        cell = f"cell {started[-1] + 1} `{_first_line(notebook.cells[started[-1]].source)}`" if started else "start-up"
        why = f"{getattr(error, 'ename', type(error).__name__)}: {_first_line(getattr(error, 'evalue', str(error)))}"
        raise NotebookFailed(f"{path.stem} failed in {cell}: {why}; its stored outputs are as before") from None
    tidy(notebook)
    with atomic_path(path) as temporary:
        nbformat.write(notebook, temporary)


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Drop what changes from run to run (timings, widget state) and keep what carries meaning (tags)."""
    notebook.metadata = type(notebook.metadata)(kernelspec=KERNEL, language_info=LANGUAGE)
    for index, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags")
        cell.metadata = type(cell.metadata)({"tags": tags} if tags else {})
        cell["id"] = f"cell-{index:02d}"
