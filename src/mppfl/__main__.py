"""python -m mppfl: the command line."""

from mppfl.cli import main

main()
