"""The whole run around the gates: from a recipe to a smaller, fine-tuned network and a folder that holds everything."""
