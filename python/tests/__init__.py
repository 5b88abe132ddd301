"""Tests of the Python packages: `python -m unittest discover python` with torch, or pytest."""
