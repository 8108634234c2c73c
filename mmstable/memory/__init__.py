"""Estimate memory, and find leaks."""
