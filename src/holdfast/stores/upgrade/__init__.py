"""Copy a store of the first schema, which had a table for each kind of row, into a new store."""
