"""Exchange with files and other databases: JSON lines, T4, merges, and checks of foreign data."""
