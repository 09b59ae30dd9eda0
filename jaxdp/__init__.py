"""jaxdp: measure, predict, simulate, check and choose between ways of data-parallel training.

Nothing is imported here, so that what must answer at once does not wait for JAX.
"""
