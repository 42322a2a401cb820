"""`python -m g2lstm`."""

from g2lstm.cli.main import main

main()
