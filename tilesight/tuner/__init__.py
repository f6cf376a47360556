"""The tuner: one session, from the search space to the comparison of finalists."""
