"""`make chaos`: kill the kit's commands at random and feed them nonsense, for some minutes, and count what went wrong.

`python -m chaos --minutes 10 --seed 0` with tests/ on the path. docs/reliability.md says what is promised.
"""
