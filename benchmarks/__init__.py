"""Measurements, run by hand (`make bench`); tests assert no speed."""
