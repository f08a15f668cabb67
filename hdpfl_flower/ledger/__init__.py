"""Durable budget ledger of a site, and its verification."""
