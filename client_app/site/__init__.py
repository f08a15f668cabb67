"""One site and one message: the opened site, its simulated records, reply time, refusals."""
