"""Enumerates layouts, splits layers over stages, ranks what fits and explains the rest."""
