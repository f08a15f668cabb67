"""The site: decodes, plans, reserves, trains, seals, encodes; it trusts no message."""
