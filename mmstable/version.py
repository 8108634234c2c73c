"""The version, readable without importing the package."""

__version__ = '1.0.0rc1'
