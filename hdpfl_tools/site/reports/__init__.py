"""The ledger of a site, read and written out: tables, wording, layout."""
