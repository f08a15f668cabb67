"""Natural federations: rules at sites that nobody drew, beside training alone and a constant."""
