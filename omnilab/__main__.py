"""`python -m omnilab NAME`."""

import sys

from omnilab.cli import main

sys.exit(main())
