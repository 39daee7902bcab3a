"""How good and how fast, against which peers."""
