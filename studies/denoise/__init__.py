"""Server steps that denoise, beside those of the product."""
