"""What the two papers print, as they print it, beside what is right."""
