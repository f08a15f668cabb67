"""A site: it decodes, plans, reserves, trains, seals and encodes, and trusts the server nothing."""
