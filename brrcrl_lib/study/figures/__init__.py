"""The figures of the notebooks, in one house style."""
