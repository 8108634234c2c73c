"""Inspect and change a run while it trains."""
