"""Training runs on disk: the store, progress, learning curves, pictures and pages."""
