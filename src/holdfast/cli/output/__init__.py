"""Terminal output: tables, progress and formatting."""
