"""Data sets, their sources, and batches made on the training device."""
