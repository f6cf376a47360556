"""Records: predictions, builds, measurements, trials, sessions and winners as frozen values."""
