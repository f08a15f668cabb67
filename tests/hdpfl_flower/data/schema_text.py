"""A small public schema: a number with a fill value, a category, a column with its own gaps."""

from __future__ import annotations

TEXT = """
[label]
column = "y"
classes = [["no", "0"], ["yes", "1", "2"]]
[[columns]]
name = "a"
type = "number"
bounds = [0, 10]
fill = 2.5
[[columns]]
name = "c"
type = "category"
categories = ["1", "2", "rot, grün"]
fill = "2"
[[columns]]
name = "d"
type = "number"
bounds = [-1, 1]
missing = ["0"]
"""
