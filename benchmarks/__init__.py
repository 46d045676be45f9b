"""Measurements: what the README's numbers are, and the commands that print them again. Nothing here is installed."""
