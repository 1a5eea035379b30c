"""The valid provider request computed from the items of a log."""
