"""Faults that are injected on purpose."""
