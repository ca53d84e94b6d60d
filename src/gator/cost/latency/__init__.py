"""Latency: what a network takes on the person's own device and runtime, measured, predicted from a table, and checked."""
