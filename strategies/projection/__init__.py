"""Projected averaging: PFA, PFA+ and their controls."""
