"""The verbs as functions, one file each: all logic that needs two rooms, from words as people say them to a record.

They parse no command line and print nothing; ``cli/verbs/`` calls one of them and hands its record to ``render/``.
"""
