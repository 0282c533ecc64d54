"""python -m bayespg."""

from bayespg.cli import main

main()
