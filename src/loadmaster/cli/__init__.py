"""The command line: parse, call one workflow, render.

To add a verb, write ``verbs/<verb>.py``: its docstring is its help, ``add_arguments(parser)`` its options and
``run(arguments) -> int`` its work, returning the exit code. A verb is imported only when it is called.
"""
