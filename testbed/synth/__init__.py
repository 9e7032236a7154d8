"""Training steps made from a model's dimensions."""
