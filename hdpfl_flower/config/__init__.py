"""Public terms of a run, and the private profile of a site."""
