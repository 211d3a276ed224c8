"""Does the advice work? Networks that missed a lag are trained again: as they were, as advised, and after a random change."""
