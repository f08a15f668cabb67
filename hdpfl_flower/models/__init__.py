"""Tasks, networks, losses and the evaluation of models."""
