"""Datasets: collection of measured candidates, refreshed profiles, and replays of searches."""
