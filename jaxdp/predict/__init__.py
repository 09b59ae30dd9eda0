"""What a run should cost, what will go wrong, and which strategy to take."""
