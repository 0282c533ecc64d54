"""Linear algebra: conditioning Gaussian processes, sparse matrices, dictionaries."""
