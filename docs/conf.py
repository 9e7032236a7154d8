"""How Sphinx builds these pages: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import fluxbed  # noqa: E402 (from this checkout)

project = "fluxbed"
author = "the fluxbed authors"
copyright = author  # noqa: A001 (Sphinx's name)
version = release = fluxbed.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"fluxbed {version}"
highlight_language = "none"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
nitpicky = False  # annotations name types that have no page
