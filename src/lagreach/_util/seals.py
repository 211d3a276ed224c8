"""Files that carry a checksum of their own bytes, in a line that their format does not look at.

It is compared before the library of the format opens the file: on damaged ones a library may read other numbers, or loop for
ever. A word elsewhere in the file says that there is such a line, so that one without it is known to be damaged, too.
"""

from __future__ import annotations

from lagreach._util.disk import checksum
from lagreach.errors import InputError

SEALED = "sealed_by_lagreach"  # the word, to be put in where the format has room for words
LINE = b"\nblake2b-128 of all other bytes: %s\n"
START, LENGTH = LINE.split(b"%")[0], len(LINE % (b"0" * 32))


def seal(content: bytes, at: int | None = None) -> bytes:
    """Put the line into a file's content, at its end or at a place that its format leaves alone.

    >>> is_sealed(seal(b"all of this"), "a file"), is_sealed(b"a file of before", "a file")
    (True, False)
    """
    at = len(content) if at is None else at
    return content[:at] + LINE % checksum(content).encode() + content[at:]


def is_sealed(content: bytes, name: str) -> bool:
    """Whether the content has such a line, and it is right; a wrong one is refused, and a missing one where it should be."""
    at = content.rfind(START)
    rest = content[:at] + content[at + LENGTH :]
    if at >= 0 and content[at : at + LENGTH] == LINE % checksum(rest).encode():
        return True
    if at >= 0 or SEALED.encode() in content:
        raise damaged(name, "the checksum in it does not match")
    return False


def damaged(name: str, why: str) -> InputError:
    """Return the error of a file that is not as it was written."""
    return InputError(
        f"this file is damaged: {why}", got=name, expected="a file as lagreach wrote it", fix="make it again"
    )
