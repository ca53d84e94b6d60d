"""The iterative run around the gates: from a recipe to a smaller, fine-tuned network in a run folder."""
