"""What is run and how: Job and its parts, the optimizers, and Changes (Job → Job). Knows choices, not bytes.

To add an optimizer, write ``optimizers/<name>.py``; to add a memory-saving move, ``changes/<name>.py``. Both are found by
their file names.
"""
