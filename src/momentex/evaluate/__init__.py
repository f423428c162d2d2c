"""What is measured of a model, as pure functions of its outputs."""
