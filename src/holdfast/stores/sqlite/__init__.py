"""SQLite: connection, driver, commits on the event loop and backups."""
