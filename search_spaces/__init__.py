"""Search spaces: for each operator, what can be tuned on a target, and which configs make sense there, with reasons.

One module an operator. `constraints` holds the rules that several of them share, `matrix_unit` how TileLang divides a
matrix product over warps.
"""
