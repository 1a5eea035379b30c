"""One SQL store for every database: statements, facts in, changes out."""
