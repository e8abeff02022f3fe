"""JupyterLab on copies of the notebooks: what a reader tries out changes no file of the kit.

python -m brrcrl_lib.tools.lab [JupyterLab's own flags]
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from brrcrl_lib.base.files import ROOT, write_json
from brrcrl_lib.tools.notebooks import KERNEL, NOTEBOOKS, all_notebooks

COPIES = Path(os.environ.get("BRRCRL_LAB") or ROOT / "runs" / "lab")
LEDGER = ".originals.json"
SETTINGS = {"@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True}}
"""JupyterLab's defaults that we change: a saved slider and its last picture are still there without a kernel."""


def copy_notebooks(originals: Path = NOTEBOOKS, copies: Path = COPIES) -> str:
    """Bring the copies up to date and say so. A copy that its reader changed is kept beside the new one."""
    ledger = copies / LEDGER
    known = json.loads(ledger.read_text()) if ledger.exists() else {}
    new = kept = 0
    for original in all_notebooks(originals):
        copy, digest = copies / original.name, _digest(original)
        if copy.exists() and known.get(original.name) == digest:
            continue
        if copy.exists() and _digest(copy) not in (digest, known.get(original.name)):
            copy.rename(copies / f"{copy.stem}_{time.strftime('%Y%m%d_%H%M%S')}.ipynb")
            kept += 1
        copies.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(original, copy)
        known[original.name] = digest
        write_json(ledger, known)
        new += 1
    place = copies.relative_to(ROOT) if copies.is_relative_to(ROOT) else copies
    news = f"{new} new from {originals.name}/" if new else "as you left them"
    aside = f"; {kept} that you had changed renamed, with the date" if kept else ""
    return f"JupyterLab works on copies of the notebooks in {place}: {news}{aside}."


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def register(folder: Path) -> dict[str, str]:
    """Write the kit's kernel and the defaults of SETTINGS below `folder`; return what lets Jupyter find them there.

    The environment itself stays as it was installed: it may be read-only, or shared.
    """
    from ipykernel.kernelspec import get_kernel_dict

    spec = {**get_kernel_dict(), "display_name": KERNEL["display_name"]}
    write_json(folder / "kernels" / KERNEL["name"] / "kernel.json", spec)
    write_json(folder / "labconfig" / "default_setting_overrides.json", SETTINGS)
    return {name: _first(folder, os.environ.get(name)) for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH")}


def _first(folder: Path, others: str | None) -> str:
    return os.pathsep.join([str(folder), *([others] if others else [])])


def flags(given: Sequence[str], root: bool) -> list[str]:
    """JupyterLab's flags. It refuses to run as root, as one does in a container, unless it is told to."""
    allow = ["--allow-root"] if root and "--allow-root" not in given else []
    return [f"--notebook-dir={COPIES}", *allow, *given]


def main(given: Sequence[str]) -> None:
    print(copy_notebooks(), flush=True)
    environment = {**os.environ, **register(COPIES / ".jupyter")}
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    os.execve(sys.executable, [sys.executable, "-m", "jupyterlab", *flags(given, root)], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
