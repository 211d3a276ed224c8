"""Products of small matrices with a tile of the result in registers, as in a BLAS, but without the set-up of one.

A compiler makes vector instructions of a loop along rows, but it loads and stores the result again for every few terms,
and that takes longer than the multiplications. So the inner part is written in LLVM's own vector instructions: a tile of
`ROWS` rows by `VECTORS` vectors is loaded once, collects all terms, and is stored once. LLVM turns the vectors into
whatever the machine has. Every element is the sum of its terms in their order, wherever it lies in a tile.

While it multiplies, memory is idle. So a tile can ask for memory that will be needed soon, a line of the cache with every
term: states and activations of a long sequence are too large for the cache, and waiting for them would take a sixth of
the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, no_type_check

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import TypingError
from numba.core.itanium_mangler import mangle
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from lagreach.kernels.cpu.compiled import LINE

# what numba compiles for: this machine, or what a variable of the environment says
_CHOSEN: str | None = getattr(config, "CPU_FEATURES", None)
_FEATURES = (get_host_cpu_features() if _CHOSEN is None else _CHOSEN).split(",")
VECTOR_BYTES = 64 if "+avx512f" in _FEATURES else 32 if "+avx2" in _FEATURES else 16
# Sums take half of the registers: of 32, or of the 16 that x86 has without AVX-512. Four rows by four vectors need fewer
# loads than eight by two; at the right end, where there is one vector, more rows keep the multipliers busy.
ROWS = 4
VECTORS = 4 if "+avx512f" in _FEATURES or "+neon" in _FEATURES else 2
TALL_ROWS = 2 * ROWS


@no_type_check
def _tiles(rows: int, vectors: int, masked: bool) -> Callable[..., Any]:
    """Return what calls the function that makes the tiles in the rows from `top` to `bottom`, columns from `left` to `right`.

    Unless `masked`, the columns must be a whole number of tiles.
    Rows beyond the last one are the last one again: they end up with the same numbers, so that storing them is harmless.
    The arrays in `prefetch` count as one row of lines. It takes the number of the first one to ask for, and returns that of the
    next one; a tile asks for lines of one array alone, since looking for the array at every term would cost too much.
    """

    def call(context, builder, types_of_arrays, arrays, *numbers):
        """A function of its own, which is not copied to where it is called: that would take long to compile."""
        C, start, pairs, prefetch = arrays
        *places, line = numbers
        arguments = [C, start, pairs, *places, prefetch, line]
        C_type, start_type, pairs_type, prefetch_type = types_of_arrays
        signature = types.intp(C_type, start_type, pairs_type, *[types.intp] * 4, prefetch_type, types.intp)
        name = mangle(f"tiles_{rows}_{vectors}_{masked}", signature.args)
        kind = ir.FunctionType(cgutils.intp_t, [value.type for value in arguments])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        if function.is_declaration:
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            inside = ir.IRBuilder(function.append_basic_block())
            inside.ret(emit(context, inside, signature, function.args))
        return builder.call(function, arguments)

    def emit(context, builder, signature, arguments):
        C_type, start_type, pairs_type, *_, prefetch_type, _ = signature.args
        C_value, start_value, pairs_value, top, bottom, left, right, prefetch_value, line = arguments
        code = _Code(context, builder, C_type.dtype)
        C, start = code.array(C_type, C_value), code.array(start_type, start_value)
        pairs = []
        for n, pair_type in enumerate(pairs_type):
            pair = cgutils.unpack_tuple(builder, builder.extract_value(pairs_value, n), 2)
            A, W = (code.array(kind, value) for kind, value in zip(pair_type, pair, strict=True))
            pairs.append((A, W, pair_type[0].ndim == 2))
        needed = [code.array(kind, builder.extract_value(prefetch_value, n)) for n, kind in enumerate(prefetch_type)]
        last = builder.sub(C.shape[0], code.integer(1))

        def one_tile(indices, carried):
            (line,) = carried
            j, i = (
                builder.add(begin, builder.mul(index, code.integer(size)))
                for begin, index, size in zip((left, top), indices, (vectors * code.width, rows), strict=True)
            )
            which = [code.smaller(builder.add(i, code.integer(r)), last) for r in range(rows)]
            mask = code.first_lanes(builder.sub(right, j)) if masked else None

            def vectors_of(row):
                first = builder.add(row, builder.mul(j, code.integer(code.bytes)))
                return [builder.add(first, code.integer(v * VECTOR_BYTES)) for v in range(vectors)]

            begin = [start.at(r) if start_type.ndim == 2 else start.at() for r in which]
            sums = [code.load(address, mask) for row in begin for address in vectors_of(row)]
            origin, end = code.lines_at(needed, line) if needed else (None, None)
            for A, W, by_row in pairs:

                def add_term(indices, carried, A=A, W=W, by_row=by_row):
                    line, *sums = carried
                    if needed:
                        code.fetch(builder.add(origin, code.smaller(line, end)))
                    weights = [code.load(address, mask) for address in vectors_of(W.at(*indices))]
                    factors = [code.spread(A.at(r, *indices) if by_row else A.at(*indices, r)) for r in which]
                    products = [(a, w) for a in factors for w in weights]
                    sums = [code.multiply_add(a, w, s) for (a, w), s in zip(products, sums, strict=True)]
                    return [builder.add(line, code.integer(LINE)), *sums]

                line, *sums = code.for_all(W.shape[:-1], [line, *sums], add_term)
            targets = [address for r in which for address in vectors_of(C.at(r))]
            for address, value in zip(targets, sums, strict=True):
                code.store(address, value, mask)
            return [code.smaller(line, builder.add(end, code.integer(LINE))) if needed else line]

        counts = [
            code.steps(begin, end, size)
            for begin, end, size in ((left, right, vectors * code.width), (top, bottom, rows))
        ]
        (line,) = code.for_all(counts, [line], one_tile)
        return line

    return call


class _Array:
    """An array in the code that is being written."""

    def __init__(self, builder: Any, start: Any, shape: list[Any], strides: list[Any]) -> None:
        self.builder, self.start, self.shape, self.strides = builder, start, shape, strides

    def at(self, *indices: Any) -> Any:
        """Address of the first entry with these leading indices."""
        address = self.start
        for index, stride in zip(indices, self.strides, strict=False):
            address = self.builder.add(address, self.builder.mul(index, stride))
        return address


class _Code:
    """Writes instructions on vectors of one dtype. Addresses are integers."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder = context, builder
        self.element, self.bytes = context.get_value_type(dtype), dtype.bitwidth // 8
        self.width = VECTOR_BYTES // self.bytes
        self.vector = ir.VectorType(self.element, self.width)
        self.name = f"v{self.width}f{dtype.bitwidth}"

    def integer(self, value: int) -> Any:
        return ir.Constant(cgutils.intp_t, value)

    def array(self, array_type: Any, value: Any) -> _Array:
        array = make_array(array_type)(self.context, self.builder, value)
        start = self.builder.ptrtoint(array.data, cgutils.intp_t)
        shape, strides = (cgutils.unpack_tuple(self.builder, values) for values in (array.shape, array.strides))
        strides[-1] = self.integer(self.bytes)  # known to the compiler
        return _Array(self.builder, start, shape, strides)

    def smaller(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def steps(self, begin: Any, end: Any, size: int) -> Any:
        """How many steps of this size it takes from begin to end."""
        beyond = self.builder.add(self.builder.sub(end, begin), self.integer(size - 1))
        return self.builder.sdiv(beyond, self.integer(size))

    def in_all_lanes(self, value: Any) -> Any:
        nothing = ir.Constant(ir.VectorType(value.type, self.width), ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.IntType(32)(0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), self.width), 0))

    def first_lanes(self, count: Any) -> Any:
        numbers = ir.Constant(ir.VectorType(count.type, self.width), [count.type(n) for n in range(self.width)])
        return self.builder.icmp_signed("<", numbers, self.in_all_lanes(count))

    def spread(self, address: Any) -> Any:
        return self.in_all_lanes(self.builder.load(self.builder.inttoptr(address, self.element.as_pointer())))

    def load(self, address: Any, mask: Any) -> Any:
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=self.bytes)
        nothing = ir.Constant(self.vector, 0.0)
        return self._call("masked.load", ".p0", self.vector, pointer, ir.IntType(32)(self.bytes), mask, nothing)

    def store(self, address: Any, value: Any, mask: Any) -> None:
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            self.builder.store(value, pointer, align=self.bytes)
        else:
            self._call("masked.store", ".p0", ir.VoidType(), value, pointer, ir.IntType(32)(self.bytes), mask)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """``a b + c``, in one instruction where there is one."""
        return self._call("fmuladd", "", self.vector, a, b, c)

    def _call(self, name: str, suffix: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [value.type for value in arguments])
        full_name = f"llvm.{name}.{self.name}{suffix}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full_name), arguments)

    def lines_at(self, arrays: list[_Array], line: Any) -> tuple[Any, Any]:
        """Where to look for a line of the cache among those of contiguous arrays, which count on from array to array.

        `line` is its number, in bytes. Returns what to add to it for its address, and the last one of the same array.
        """
        builder, begin = self.builder, self.integer(0)
        origin = end = None
        for array in arrays:
            size = self.integer(self.bytes)
            for length in array.shape:
                size = builder.mul(size, length)
            last = builder.add(begin, builder.and_(builder.sub(size, self.integer(1)), self.integer(-LINE)))
            offset = builder.sub(array.start, begin)
            if end is None:
                origin, end = offset, last
            else:
                later = builder.icmp_signed(">", line, end)
                origin, end = builder.select(later, offset, origin), builder.select(later, last, end)
            begin = builder.add(last, self.integer(LINE))
        return origin, end

    def fetch(self, address: Any) -> None:
        """Ask for the line of the cache at an address, without waiting for it."""
        pointer = self.builder.inttoptr(address, ir.IntType(8).as_pointer())
        to_read, into_second_cache, data = (ir.IntType(32)(option) for option in (0, 2, 1))
        kind = ir.FunctionType(ir.VoidType(), (pointer.type, *[ir.IntType(32)] * 3))
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, (pointer, to_read, into_second_cache, data))

    def for_all(self, counts: Any, carried: Any, body: Callable[[Any, Any], Any], indices: tuple[Any, ...] = ()) -> Any:
        """Nested loops; what is carried from turn to turn stays in registers."""
        if not counts:
            return body(indices, carried)
        builder = self.builder
        before, head, inside, after = builder.block, *(builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        index, *values = (builder.phi(kind) for kind in (cgutils.intp_t, *(value.type for value in carried)))
        builder.cbranch(builder.icmp_signed("<", index, counts[0]), inside, after)
        builder.position_at_end(inside)
        inner = self.for_all(counts[1:], values, body, (*indices, index))
        following = builder.add(index, self.integer(1))
        for phi, first, next_one in zip(
            (index, *values), (self.integer(0), *carried), (following, *inner), strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(next_one, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return values


_many_wide, _one_wide = (_tiles(rows, VECTORS, masked=False) for rows in (ROWS, 1))
_narrow = _tiles(TALL_ROWS, 1, masked=True)


@intrinsic
@no_type_check
def sum_of_products(typing_context, C, start, pairs, first, last, prefetch=()):
    """``C = start + sum A W`` over the pairs (A, W), in the columns from first to last alone.

    A is (row, term) and W (term, column), or A is (term, term, row) and W (term, term, column), summed over both axes of
    terms. A may be any view whose last axis is contiguous, all else is contiguous.
    `start` is one row, or of the shape of C, and may be C itself. `prefetch` are arrays that will be needed next.
    Written in LLVM's own instructions, too: numba takes longer over a few lines of Python wherever they are called.
    """
    if any(array.layout != "C" for array in (C, start, *prefetch, *(W for _, W in pairs))):
        raise TypingError("all arrays but A must be contiguous")
    if any(A.layout == "F" for A, _ in pairs):
        raise TypingError("the last axis of A must be contiguous")
    if any(array.dtype != C.dtype for array in (start, *(array for pair in pairs for array in pair))):
        raise TypingError("all arrays must have the same dtype")

    # numba leaves a default as it is
    later = prefetch if isinstance(prefetch, types.BaseTuple) else types.Tuple(())

    def call(context, builder, signature, arguments):
        C_value, start_value, pairs_value, left, right, later_value = arguments
        code = _Code(context, builder, C.dtype)
        made = context, builder, (C, start, pairs, later), (C_value, start_value, pairs_value, later_value)
        rows, none = code.array(C, C_value).shape[0], code.integer(0)
        wide = code.integer(VECTORS * code.width)
        whole = builder.mul(builder.sdiv(builder.sub(right, left), wide), wide)
        narrow = builder.add(left, whole)
        line = cgutils.alloca_once_value(builder, none)
        with builder.if_then(builder.icmp_signed("<", left, narrow)):
            odd = builder.srem(rows, code.integer(ROWS))
            few = builder.icmp_signed("<=", odd, code.integer(ROWS // 4))  # so few are faster one by one
            alone = builder.select(few, builder.sub(rows, odd), rows)
            builder.store(_many_wide(*made, none, alone, left, narrow, builder.load(line)), line)
            with builder.if_then(builder.icmp_signed("<", alone, rows)):
                builder.store(_one_wide(*made, alone, rows, left, narrow, builder.load(line)), line)
        with builder.if_then(builder.icmp_signed("<", narrow, right)):
            _narrow(*made, none, rows, narrow, right, builder.load(line))  # one row takes as long as eight: sums wait
        return context.get_dummy_value()

    return types.void(C, start, pairs, types.intp, types.intp, later), call
