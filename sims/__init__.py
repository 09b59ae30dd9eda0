"""What if workers, links or devices were uneven: simulation in virtual time."""
