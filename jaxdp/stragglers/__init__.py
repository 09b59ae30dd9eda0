"""Uneven workers: the SPEC, its delay models, and how a real run is delayed by them."""
