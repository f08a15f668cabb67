"""Texts of the commands, as Jinja templates."""
