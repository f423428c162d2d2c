"""What the exchange costs: the operator, a training step, memory, accuracy, import. `make bench` runs all of it."""
