"""The rules, in files by subject; importing them registers them."""

from mmstable.check.rules import data, model, names, optimizer, run

__all__ = ['data', 'model', 'names', 'optimizer', 'run']
