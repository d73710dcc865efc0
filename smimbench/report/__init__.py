"""What a reader sees: rows, tables, figures."""
