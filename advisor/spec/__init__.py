"""Frozen values that every other room speaks of: model, hardware, workload, layout, plan."""
