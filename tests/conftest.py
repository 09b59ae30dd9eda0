"""Strict JAX for every test: 8 CPU devices, no silent rank promotion, warnings are errors (pyproject)."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# Compiling is most of what the tests do: machine code that is not optimised halves it. The programs are the same.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
