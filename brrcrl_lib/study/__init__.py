"""The study of the paper: what the notebooks show."""
