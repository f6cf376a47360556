"""Data sets of FlashInfer-Bench: definitions of operators, and workloads of engines, which are shapes here"""
