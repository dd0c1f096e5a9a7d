"""`python -m paperbench`."""

from paperbench.cli.main import main

raise SystemExit(main())
