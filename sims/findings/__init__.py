"""The study's findings F1 to F6, each tested: measured or predicted evidence, and a verdict that follows from it."""
