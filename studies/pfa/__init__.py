"""The tables of PFA and PFA+."""
