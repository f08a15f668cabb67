"""Measures of a model's outputs: discrimination, calibration, errors, each with an interval."""
