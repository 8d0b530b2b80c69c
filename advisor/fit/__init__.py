"""Measured runs: reading them, scoring predictions against them, fitting coefficients to them."""
