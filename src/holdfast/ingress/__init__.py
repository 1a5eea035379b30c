"""Who asks: translation of outside protocols into one gateway call, and back."""
