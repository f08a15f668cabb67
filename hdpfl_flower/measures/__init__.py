"""Model measures with intervals: discrimination, calibration and errors."""
