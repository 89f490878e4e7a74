"""Programs as they are: a file runs in this process on the simulated device, and the libraries it uses don't notice.

``run`` runs a file; ``adjustments`` changes libraries when they are imported, each by the file of its name in ``libraries/``.

To add a library: ``libraries/<name>.py`` with ``PATCHES``, a dict from the name of a module to a function that takes the
imported module and an ``Adjustments``. It never imports the library, and it changes only what can't run without data or
would write the user's files.
"""
