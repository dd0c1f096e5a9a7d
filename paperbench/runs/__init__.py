"""From a table to runs, and from a run to its record."""
