"""Callbacks of relax-lightning: policy, logging and saving, one callback a file."""
