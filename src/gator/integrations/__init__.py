"""Pruning inside the trainers that people use. Each module needs the package that it is named after, and nothing else does."""
