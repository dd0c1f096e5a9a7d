"""Experiments, published numbers, recipes and profiles, read strictly from YAML. Never imports torch."""
