"""One file a family of gated linear layers; `lagreach.adapters.families` finds them."""
