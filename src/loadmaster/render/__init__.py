"""Nouns to text for terminals, JSON and HTML: what something looks like, and no input or output.

A view is a file named after what it shows (``hardware.py``, ``plan.py``), ``*_json.py`` its JSON, ``*_html.py`` its HTML.
``terminal.py`` has the little that a plan needs of a terminal; other views use rich.
"""
