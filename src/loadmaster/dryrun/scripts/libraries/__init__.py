"""What each library needs: ``PATCHES`` of a file, by the name of the module that they are for."""
