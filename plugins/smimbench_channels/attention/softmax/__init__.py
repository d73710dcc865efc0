"""Softmax of the attention matrix, one layer or two."""
