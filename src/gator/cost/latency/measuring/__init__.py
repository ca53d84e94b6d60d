"""What a latency table lacks for a network, and how it is measured."""
