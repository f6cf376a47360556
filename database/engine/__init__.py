"""Connections, transactions and the differences between SQLite and PostgreSQL."""
