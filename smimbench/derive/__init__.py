"""What the engine adds to a plugin that gives less than the whole contract."""
