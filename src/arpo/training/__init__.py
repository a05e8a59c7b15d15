"""Training: from a model without knowledge to one that uses a computer."""
