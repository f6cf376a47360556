"""The analytical cost model: a time from the profile and the figures of the target."""
