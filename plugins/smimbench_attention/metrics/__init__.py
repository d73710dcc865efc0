"""The metrics that ship with smimbench: measures of the quality of an estimate, one per file."""
