"""``python -m docs.figures FOLDER``."""

from docs.figures import main

main()
