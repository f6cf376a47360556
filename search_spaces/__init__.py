"""Search spaces of the shipped operators: parameters and constraints, by workload and target.

One module per operator. `constraints` and `row_reduction` have shared rules; `matrix_unit` has the division
of a matrix product over warps.
"""
