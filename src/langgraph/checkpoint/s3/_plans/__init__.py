"""Every storage operation, written once, as a plan: read, list, write, delta history, prune, whole threads.

A function that returns a plan ends in `_plan`. It does nothing until a driver runs it or another plan
takes it over by `yield from`.
"""
