"""Training runs on disk: the store, progress, learning curves, figures and pages."""
