"""Who depends on whom: from a model to its hypergraph of channels (paper, section 3.2)."""
