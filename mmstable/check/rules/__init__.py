"""The rules, in files by subject; importing them registers them."""

from mmstable.check.rules import data, names, optimizer, run

__all__ = ['data', 'names', 'optimizer', 'run']
