"""Which tests go to the same process."""

from xdist.scheduler import LoadFileScheduling

COMPILED = ("tests/kernels/", "tests/transport/", "tests/theory/")
REPORTS = "tests/report/"  # all look at the same diagnoses


class ByFileOrKernel(LoadFileScheduling):
    """A file's tests stay in one process: what they share is made once. So do all tests that compile kernels for a dtype.

    Both groups have the most tests and therefore come first; the tests after them find what numba compiled on the disk.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(COMPILED):
            return "kernels in float32" if "float32" in nodeid else "kernels in float64"
        return REPORTS if nodeid.startswith(REPORTS) else super()._split_scope(nodeid)
