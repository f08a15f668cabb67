"""Work after the last round: final, personal and tuned models, tests, histogram."""
