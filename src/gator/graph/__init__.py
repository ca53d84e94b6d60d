"""Which channels of a model depend on each other: from a model to its hypergraph (paper, section 3.2)."""
