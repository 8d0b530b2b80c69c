"""Pure functions (Model, Cluster, Workload, Columns) -> columns: parameters, memory, FLOP, communication, step time."""
