"""Queries of the tuner and of dispatch: records of a context, best configs, winners."""
