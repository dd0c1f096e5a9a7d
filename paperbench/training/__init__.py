"""Training of one net by a recipe."""
