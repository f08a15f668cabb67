"""Scales of a charged first message, on small tables with wide bounds."""
