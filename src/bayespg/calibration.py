"""Calibration (to be written)."""
