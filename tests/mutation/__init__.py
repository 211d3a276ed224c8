"""Do the tests notice when the code is wrong? `python -m tests.mutation` changes it in small ways and looks."""
