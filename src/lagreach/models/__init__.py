"""The package's own networks: `GatedRNN`, its initialisation, and torch's layouts of weights."""
