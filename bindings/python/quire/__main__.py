"""`python -m quire`: the `quire` command."""

from ._command import main

main()
