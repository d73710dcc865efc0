"""Row-wise argmax of the attention matrix."""
