"""Deep softmax attention with one direction per layer."""
