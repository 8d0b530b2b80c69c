"""How answers show themselves: JSON records, data frames, notebook tables and plots."""
