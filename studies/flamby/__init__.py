"""FLamby's privacy table on four heart hospitals, with true ε."""
