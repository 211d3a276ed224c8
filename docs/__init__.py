"""The documentation: pages in Markdown, and what is made for them from code and stored files."""
