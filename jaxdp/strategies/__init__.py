"""The strategies: one row each, what it cuts, and what it must send (no JAX)."""
