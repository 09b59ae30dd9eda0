"""The one loop that runs every strategy."""
