"""The record of a run: a local journal of every metric point, MLflow behind it, and progress on the screen."""
