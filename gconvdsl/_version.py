"""The version of the package, alone in a file so that the build can read it without imports."""

__all__ = ["__version__"]

__version__ = "0.1.0"
