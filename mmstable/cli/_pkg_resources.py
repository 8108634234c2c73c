"""The part of pkg_resources that mmengine uses, from importlib.metadata."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path


class DistributionNotFound(Exception):  # noqa: N818
    """The name of pkg_resources, which mmengine catches."""


class Distribution:
    """An installed package, with what mmengine asks of it.

    Args:
        found (metadata.Distribution): The package's metadata.
    """

    def __init__(self, found: metadata.Distribution) -> None:
        self._found = found

    @property
    def location(self) -> str:
        """The folder that holds the package, also if it is editable."""
        for module in self._top_level():
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.origin is not None:
                return str(Path(spec.origin).parent.parent)
        return str(self._found.locate_file(''))

    def has_metadata(self, name: str) -> bool:
        """Whether the package has the metadata file ``name``."""
        return self._found.read_text(name) is not None

    def get_metadata(self, name: str) -> str:
        """The text of the metadata file ``name``, empty if there is none."""
        return self._found.read_text(name) or ''

    def _top_level(self) -> list[str]:
        return self.get_metadata('top_level.txt').split()


def get_distribution(name: str) -> Distribution:
    """The installed package called ``name``."""
    try:
        return Distribution(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        raise DistributionNotFound(name) from None
