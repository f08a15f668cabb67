"""Averaging strategies with weights independent of the updates."""
