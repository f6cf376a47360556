"""Dispatch tables: their values and their file format."""
