"""Maintenance: integrity checks, garbage collection, and reasons why records are not reused."""
