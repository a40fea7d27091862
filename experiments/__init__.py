"""The paper's study: every table and figure, at three scales. Run it by `python -m experiments`."""
