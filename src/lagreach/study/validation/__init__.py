"""The validation study: does the window predict what networks learn?"""
