"""Grids of experiments, running them, and the rows that they leave."""
