"""Choosing the config for a shape: from records, tables, neighbours or the model."""
