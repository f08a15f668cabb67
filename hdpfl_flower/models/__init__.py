"""Tasks, networks, losses and model evaluation."""
