"""Numbers that the paper reports: normalised scores, 10 episodes, its own environments and data (D4RL v2; Atari below).

They stand beside ours to compare the order of methods, never to be subtracted from them: the kit's datasets are its
own, on Gymnasium v5.
"""

from __future__ import annotations

import pandas as pd

TABLE_1 = pd.DataFrame(
    {
        "halfcheetah medium-expert": [95.2, 90.6, 95.0, 86.8, 92.2, 55.2, 92.9, 34.8, 90.7, 86.7, 91.6, 53.4],
        "hopper medium-expert": [112.9, 111.8, 110.0, 107.6, 101.7, 52.5, 110.9, 27.5, 98.0, 91.5, 105.4, 96.3],
        "walker2d medium-expert": [111.0, 108.8, 101.9, 108.1, 106.0, 107.5, 109.0, 16.2, 110.1, 109.6, 108.8, 40.1],
        "halfcheetah medium": [48.6, 49.1, 46.9, 42.6, 41.6, 42.6, 42.5, 35.2, 48.3, 47.4, 44.0, 41.7],
        "hopper medium": [78.0, 79.3, 61.1, 67.6, 60.2, 52.9, 56.9, 75.3, 59.3, 66.3, 58.5, 52.1],
        "walker2d medium": [82.3, 82.5, 79.0, 74.0, 71.7, 75.3, 75.0, 14.7, 83.7, 78.3, 72.5, 59.1],
        "halfcheetah medium-replay": [42.3, 39.3, 41.9, 36.6, 38.0, 36.6, 40.6, 24.5, 44.6, 44.2, 45.5, 38.6],
        "hopper medium-replay": [98.3, 100.0, 91.5, 82.7, 73.5, 18.1, 75.9, 12.4, 60.9, 94.7, 95.0, 33.7],
        "walker2d medium-replay": [80.6, 75.0, 82.6, 66.6, 60.0, 26.0, 62.5, 9.4, 81.8, 73.9, 77.2, 19.2],
    },
    index=["BR-RCRL", "DD", "TT", "DT", "RvS", "BC", "10% BC", "IBC", "TD3+BC", "IQL", "CQL", "BEAR"],
)
"""Table 1: the nine Gym tasks; its own method over 5 seeds, the others' numbers from their own papers."""

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

# -- Atari: other data and other units ---------------------------------------------------------------------------

TABLE_2 = pd.DataFrame(
    {
        "breakout": [136.5, 496.7, 282.4, 889.0, 293.6, 1239.2],
        "qbert": [38.3, 52.1, 63.7, 103.0, 60.1, 117.4],
        "pong": [1.9, 119.3, 98.7, 130.7, 113.0, 138.0],
        "seaquest": [1.6, 14.5, 19.2, 17.9, 7.2, 7.1],
    },
    index=["BC", "QR-DQN", "REM", "CQL", "DT", "BR-RCRL"],
)
"""Table 2: normalised scores on 10% of the DQN replay data; its own method over 5 seeds.

0 is a random player and 100 a human one, whose scores the paper does not list; see `World.paper_reference`. The
other methods' numbers are from their own papers, except DT's, which the authors ran again on the 10% data.
"""

TABLE_2_SPREAD = pd.Series({"breakout": 104.2, "qbert": 13.5, "pong": 2.2, "seaquest": 3.1})
"""The +- of BR-RCRL in Table 2."""

ATARI_PROTOCOL = {
    "data": "10% of the replay buffer of an online DQN",
    "transitions": "5,000,000 per game",
    "gradient steps": "3,000,000",
    "batch": "32",
    "network": "not stated; Nature CNN in the released code",
    "frames": "how they are scaled is not stated",
    "how returns are learned": "likelihood of the observed return (text); projected Bellman target (released code)",
    "discount": "0.95",
    "return buckets": "51 from 0 to 10, every game",
    "target": "adaptive, δ = 0.1",
    "random actions": "1%",
    "games per training": "10",
    "trainings": "5",
    "a game is cut off after": "not stated",
    "human scores": "cites Hafner et al. (2020), seems to divide by those of Mnih et al. (2015)",
    "memory": "about 150 GB",
}
"""Sections 5.1 and 5.2, Table 2 and the appendix's table of hyperparameters for Atari; the network is the code's."""

INFERENCE_MS = pd.Series({"halfcheetah": 8.2, "hopper": 8.0, "walker2d": 8.2})
"""Appendix, "Inference time of EBM": milliseconds per action on an RTX A6000; of the games, 2.9 to 3.2."""
