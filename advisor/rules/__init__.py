"""Legality, effectiveness and lint as one form of rule, over columns."""
