"""lagreach: how far back in time can a recurrent model learn from N sequences?"""

from lagreach._version import __version__

__all__ = ["__version__"]
