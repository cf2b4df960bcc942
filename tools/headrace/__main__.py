"""Run the command line by ``python -m headrace``, for instance where no scripts are on PATH."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
