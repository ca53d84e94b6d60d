"""Gates on the edges of a graph, and what is learned with them: the paper's sections 3.1, 3.3 and 3.4."""
