"""Numbers that the paper reports: normalised scores on D4RL v2, 10 episodes and 5 seeds, its own environments.

They stand beside ours to compare the order of methods, never to be subtracted from them: the kit's datasets are its
own, on Gymnasium v5.
"""

from __future__ import annotations

import pandas as pd

TABLE_3 = pd.DataFrame(
    {
        "walker2d medium-replay": [80.6, 69.4, 72.2],
        "walker2d medium": [82.3, 77.3, 78.1],
        "walker2d medium-expert": [111.0, 110.2, 109.6],
    },
    index=["adaptive, δ = 0.1", "max", "DT scheduler"],
)
"""Table 3: ways to choose the target return, Walker2d."""

TABLE_4 = pd.DataFrame(
    {
        "walker2d medium-replay": [80.6, 72.3, 77.1, 67.1],
        "walker2d medium": [82.3, 79.5, 80.6, 75.4],
        "walker2d medium-expert": [111.0, 108.9, 110.3, 109.1],
    },
    index=["full model", "without L1", "uniform negatives", "without the reparameterisation"],
)
"""Table 4: components taken away one at a time, Walker2d."""

TABLE_TOP_SHARES = pd.DataFrame(
    {
        "hopper": [77.3, 78.5, 77.1, 98.3, 94.1, 90.3],
        "walker2d": [65.5, 64.4, 66.2, 80.6, 76.4, 73.2],
        "halfcheetah": [36.0, 37.2, 36.5, 42.3, 40.5, 38.1],
    },
    index=pd.MultiIndex.from_product([("Decision Transformer", "BR-RCRL"), ("100%", "50%", "20%")]),
)
"""Appendix, "RTG Independence Problem in DT": trained on the best part of medium-replay."""
