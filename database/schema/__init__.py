"""The schema: tables, views and migrations."""
