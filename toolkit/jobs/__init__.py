"""Many documents, restartable."""
