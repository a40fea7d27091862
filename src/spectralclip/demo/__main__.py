"""`python -m spectralclip.demo`: the demo without the packages of the command line."""

from spectralclip.demo.tour import main

if __name__ == "__main__":
    main()
