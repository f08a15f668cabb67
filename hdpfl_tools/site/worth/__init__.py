"""Worth of a run, judged at the site: neither released nor charged."""
