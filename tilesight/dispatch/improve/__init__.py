"""Replacing a kernel in use by a faster one, after paired measurements."""
