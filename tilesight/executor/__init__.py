"""Executors: they draw jobs from a source and run them, on this machine or on a Ray cluster."""
