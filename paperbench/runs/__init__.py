"""Plan the runs of a table, train them, and keep their results."""
