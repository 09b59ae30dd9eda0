"""What is trained: the model, its data and its optimizer. No mesh, no device."""
