"""Targets: hardware descriptions, read from TOML files and checked."""
