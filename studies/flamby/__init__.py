"""FLamby's table of differential privacy on the four heart hospitals, with what each ε is."""
