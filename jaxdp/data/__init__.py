"""Corpora, token files and the one data pipeline."""
