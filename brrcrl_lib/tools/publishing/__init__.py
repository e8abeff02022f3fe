"""From collections and policies to datasets with cards."""
