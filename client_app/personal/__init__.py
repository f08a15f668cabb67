"""Personal models, which stay at the site."""
