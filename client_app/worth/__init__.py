"""Whether a run was worth joining, judged at the site alone: nothing is released or charged."""
