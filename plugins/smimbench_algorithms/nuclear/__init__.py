"""Nuclear-norm regression and its limit."""
