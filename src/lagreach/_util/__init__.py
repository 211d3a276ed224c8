"""Small tools that know nothing of recurrent models."""
