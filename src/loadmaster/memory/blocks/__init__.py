"""Layers written on the tape, operator by operator, as transformers' modelling code computes them.

Each file is one kind of module and says which class it mirrors. To add one (a new mixer, say), write its function here
and call it from ``layer.py``; nothing else has to know.
"""
