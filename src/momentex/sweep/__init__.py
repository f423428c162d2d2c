"""Many runs: side by side on this machine or on a cluster, as grids over recipes, as searches. Needs no torch."""
