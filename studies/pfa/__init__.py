"""Tables of PFA and PFA+."""
