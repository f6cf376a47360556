"""Traces: the time stamps that a kernel writes while it runs, as times of its blocks, roles and iterations"""
