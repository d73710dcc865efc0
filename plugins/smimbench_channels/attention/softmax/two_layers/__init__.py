"""Two layers of softmax attention between two tokens."""
