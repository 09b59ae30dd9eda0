"""Strict JAX for every test: 8 CPU devices, no silent rank promotion, warnings are errors (pyproject)."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
