"""From *seen* to *recovered*: what training will learn of each lag."""
