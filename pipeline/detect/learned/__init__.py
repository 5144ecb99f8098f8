"""Detectors with trained models, as operators of a running job."""
