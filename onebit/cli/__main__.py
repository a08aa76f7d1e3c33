"""`python -m onebit.cli`."""

from onebit.cli.main import main

main()
