"""Answers laid out as documents: one module per kind of answer, and the parts that several of them share."""
