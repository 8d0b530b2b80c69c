"""Event simulation: what closed forms average over, played out."""
