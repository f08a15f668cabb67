"""Folders of images as records, within bounds on memory."""
