"""Comparison of our results with the published ones. Never imports torch."""
