"""Benchmarks: the fastest kernel of each workload beside the vendor's libraries"""
