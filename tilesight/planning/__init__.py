"""Planning: the few kernels that cover a range of sizes at the least loss.

Sizes of the range are sampled (`sizes.py`), configs are predicted at all of them (`survey.py`), the few that matter are
built once each (`shortlist.py`) and measured where they may be the best (`trying.py`); predictions are corrected by what was
measured (`correction.py`), the kernels chosen (`cover.py`), held against the default config in turns (`doubts.py`), and the
range is cut into segments (`segments.py`). `planner.py` is the loop in which they meet.
"""
