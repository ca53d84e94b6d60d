"""How a network is run: PyTorch, ONNX Runtime or OpenVINO, under one setup."""
