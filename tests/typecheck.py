"""The run-time type checker of the tests: as static checkers do, it lets an int stand for a float."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
