"""``python -m loadmaster``."""

import sys

from loadmaster.cli.main import main

sys.exit(main())
