"""What a network costs: multiply-adds, parameters, bytes and measured time."""
