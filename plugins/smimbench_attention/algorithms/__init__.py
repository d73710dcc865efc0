"""The algorithms that ship with smimbench, one per file or folder."""
