"""Dispatch of operators that several devices compute together, with one process for each device."""
