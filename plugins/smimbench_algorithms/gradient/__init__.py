"""What all gradient methods share."""
