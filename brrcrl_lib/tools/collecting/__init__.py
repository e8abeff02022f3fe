"""Train online agents and keep every transition."""
