"""Holdfast: a durable session layer and gateway for LLM agents.

Importing this package is cheap: everything heavier than the version loads when it is first used.
"""

from holdfast._version import __version__

__all__ = ["__version__"]
