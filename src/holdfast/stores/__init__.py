"""Where it is kept: one SQL store on SQLite and PostgreSQL."""
