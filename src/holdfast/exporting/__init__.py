"""Sessions for other places: as lines with their lineage, as Markdown, as a model's input."""
