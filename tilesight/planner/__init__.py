"""Planning: the few kernels that cover a range of sizes at the least loss.

sizes                               the range, its cells, the sampled sizes
size_predictions, predict_range     predictions of configs at sizes
shortlist                           the configs that are built
measure_loop, pairwise_tests        measuring; timing in turns with the default config
plan_state, size_correction         what is known, and predictions corrected by measurements
cover, kernel_choice, segments      which kernels serve which sizes
make_table, summary                 the dispatch table and the result
plan_measurements, planner          the order of these steps
"""
