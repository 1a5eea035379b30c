"""Storage: one SQL store on SQLite and PostgreSQL."""
