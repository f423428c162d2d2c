"""What came of a sweep: in its folder, as a value, as the paper's table. Needs no torch."""
