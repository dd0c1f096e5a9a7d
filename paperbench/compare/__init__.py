"""Published numbers and ours. Never imports torch."""
