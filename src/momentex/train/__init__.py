"""Training: recipes as values, one loop, and runs that survive."""
