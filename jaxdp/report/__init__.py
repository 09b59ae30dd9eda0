"""What was found: tables, figures, pages."""
