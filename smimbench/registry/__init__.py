"""One door for plugins: what is registered, how parameters are checked, what a new package looks like."""
