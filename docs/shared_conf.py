"""What Sphinx has to know, whatever the language of the pages."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import generated_parts  # noqa: E402

from mmstable.version import __version__  # noqa: E402

project = 'mmstable'
author = copyright = 'mmstable authors'
release = version = __version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 4
# Blocks that show what a program prints have any language or none.
suppress_warnings = ['misc.highlighting_failure']

autodoc_default_options = {'show-inheritance': False}
# Types are in the docstrings, where they are easier to read.
autodoc_typehints = 'none'
autodoc_class_signature = 'mixed'
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = 'furo'
html_title = f'mmstable {release}'
html_show_sphinx = False
html_copy_source = False
exclude_patterns = ['_build']

setup = generated_parts.setup
