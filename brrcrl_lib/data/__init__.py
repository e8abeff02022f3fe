"""Reads offline data: Minari datasets of vectors, stores of Atari frames, and the environments they came from."""
