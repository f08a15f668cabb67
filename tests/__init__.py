"""Tests; a package, whose modules import each other and run by ``python -m``."""
