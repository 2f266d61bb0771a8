"""`python -m tessera` is the command `tessera`."""

from tessera_tools import main

if __name__ == "__main__":
    main()
