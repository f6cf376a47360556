"""Rechecking: recorded winners of earlier software are measured again, each beside a few other kernels"""
