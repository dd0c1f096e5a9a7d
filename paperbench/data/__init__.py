"""Data sets, where they come from, and batches made on the training device."""
