"""A grid of cells, each measured by a process of its own, into one table."""
