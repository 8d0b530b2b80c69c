"""Profiler traces (Kineto / Chrome JSON, nsys sqlite): numpy columns, interval unions, hidden and exposed time.

The way of a file: `files` finds and opens it, `kineto` (over `chunks`) or `nsys` makes a `Trace` of columns (`events`),
`steps` cuts it into windows, `classes` says what each event is by the tables of `kernels`, `overlap` measures on the
interval core of `intervals`. `analysis` does so rank by rank, `skew` puts ranks beside each other, `verdict` and
`compare` put a plan or another trace beside them, `record` is the JSON form, `annotate` writes tracks to look at.
"""
