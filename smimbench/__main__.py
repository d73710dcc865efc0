"""``python -m smimbench`` is the command line."""

from smimbench.cli import main

if __name__ == "__main__":
    main()
