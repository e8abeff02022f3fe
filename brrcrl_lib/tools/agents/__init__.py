"""Stored policies, and playing them."""
