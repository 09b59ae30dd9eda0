"""The built-in models, and what follows from their shapes."""
