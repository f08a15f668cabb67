"""Tables of sites: schemas drafted, exports checked and read."""
