"""Rows of the tables: from values to rows and back."""
