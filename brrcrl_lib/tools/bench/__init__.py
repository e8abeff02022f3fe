"""`make bench`: speed, measured side by side."""
