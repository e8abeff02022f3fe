"""The house style: one look for every figure, readable at half size and in greyscale."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

from brrcrl_lib.base.files import ROOT, atomic_path

# Okabe and Ito's colour-blind safe colours, in an order whose brightness also differs.
COLORS = {
    "ours": "#0072B2",  # BR-RCRL, adaptive inference
    "vanilla": "#D55E00",  # vanilla reward-conditioned
    "schedule": "#E69F00",  # Decision Transformer schedule
    "exact": "#000000",  # ground truth, oracle
    "data": "#999999",  # behaviour policy, dataset
    "good": "#009E73",
    "accent": "#CC79A7",
    "sky": "#56B4E9",
}
METHOD_NAMES = {
    "br_rcrl": "BR-RCRL",
    "br_rcrl_joint": "BR-RCRL",
    "vanilla": "vanilla RCRL",
    "cloning": "cloning",
    "dt": "DT",
    "rvs": "RvS-R",
    "ibc": "IBC",
    "td3_bc": "TD3+BC",
    "iql": "IQL",
    "cql": "CQL",
    "bear": "BEAR",
}
"""Methods as tables and legends call them."""
METHOD_COLORS = {
    "BR-RCRL": COLORS["ours"],
    "BR-RCRL, paper text": COLORS["sky"],
    "vanilla RCRL": COLORS["vanilla"],
    "cloning": COLORS["data"],
    "DT": COLORS["schedule"],
    "RvS-R": COLORS["vanilla"],
    "IBC": COLORS["accent"],
    "TD3+BC": COLORS["good"],
    "IQL": COLORS["good"],
    "CQL": COLORS["accent"],
    "BEAR": COLORS["exact"],
}
"""One palette for methods; lines and markers tell apart those that share a colour."""
MARKERS = {"ours": "o", "vanilla": "s", "schedule": "^", "exact": "", "data": "D"}
LINES = {"ours": "-", "vanilla": "--", "schedule": "-.", "exact": "-", "data": ":"}


def use_house_style() -> None:
    """Set Matplotlib's defaults; notebooks do this through `begin`."""
    mpl.rcParams.update(
        {
            "figure.figsize": (8.0, 4.0),
            "figure.dpi": 100,
            "savefig.dpi": 150,
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "lines.linewidth": 2.0,
            "lines.markersize": 6,
            "image.cmap": "viridis",
            "axes.prop_cycle": cycler(
                color=[COLORS[name] for name in ("ours", "vanilla", "good", "schedule", "accent", "sky")]
            ),
        }
    )


FIGURES = ROOT / "figures"
"""The kit's own figures. Only `brrcrl notebooks refresh` writes here: nobody's experiment replaces them."""


def figures_of(run: str) -> Path:
    """Where the pictures of a run go (its preset, or bench): below runs/, or to the folder named by BRRCRL_FIGURES."""
    return Path(os.environ.get("BRRCRL_FIGURES") or ROOT / "runs" / "figures" / run)


def save_figure(figure: Figure, name: str, run: str) -> Path:
    """Write `<name>.png` to where the pictures of `run` go. Those of a smoke run are marked."""
    folder = figures_of(run)
    if run == "smoke":
        figure.text(0.5, 0.5, "smoke run: numbers claim nothing", color="0.6", alpha=0.5, size=20, rotation=20,
                    ha="center", va="center")  # fmt: skip
    path = folder / f"{name}.png"
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return path
