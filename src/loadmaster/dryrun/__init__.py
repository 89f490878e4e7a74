"""Dry run: the real training step, op by op, on a GPU that isn't there.

The user's own PyTorch code runs on fake tensors of a simulated CUDA device; every storage it makes is a block of a faithful
model of PyTorch's caching allocator. ``session.Session`` is the simulated device; ``programs/`` build and step models by name,
``scripts/`` runs files as they are. Nothing here imports torch before it is needed: ``allocator``, ``alloc_conf``, ``replaying``,
``snapshots``, ``events`` and ``result`` never do.

To add one thing: a stand-in for an operator is an entry of ``kernels``, scratch memory that a CUDA kernel takes is an entry of
``workspaces``, what a library needs in scripts is a file in ``scripts/libraries``.
"""
