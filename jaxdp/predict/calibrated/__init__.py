"""Steps of any stack on known devices, with coefficients fitted to runs that others published."""
