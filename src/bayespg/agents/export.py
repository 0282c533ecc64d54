"""A policy as an ONNX file, for programs without JAX: from raw observations to the most likely
actions, the normalisation of observations and the bounds of actions included.

The policy is traced by JAX, and each of its primitive operations becomes one or two of ONNX. So a
policy of your own can be exported too, as long as it is made of these operations; any other is
named. Numbers are float32.
"""

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from bayespg._support import checks
from bayespg._support.files import write_whole
from bayespg.environments.spaces import Actions, Bounded
from bayespg.paths.worlds import OnHost, World
from bayespg.policies import AnyPolicy, as_dtype, remembers

OPSET = 17


def onnx(world: World, acting: AnyPolicy, path: str | Path, batch: int = 1) -> None:
    """Write a policy that acts in `world` to `path`. Its input, `observation`, has shape (batch,
    d), each row an observation as one vector of d numbers (with masks: and the mask behind it); its
    output, `action`, is what `predict` gives for them."""
    try:
        import onnx  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("export: onnx is missing; pip install 'bayespg[onnx]'") from None
    batch = checks.whole("batch", batch, 1)
    if remembers(acting):
        raise ValueError("export: a policy with memory cannot be exported; only others can")
    if not isinstance(world, OnHost):
        raise ValueError("export: only policies for Gymnasium environments can be exported")
    with jax.enable_x64(False):
        single: Any = as_dtype(acting, jnp.float32)
        seen = jax.ShapeDtypeStruct((batch, *world.observation.shape), jnp.float32)

        def act(x):
            chosen = jax.vmap(lambda o: single.step(single.start(), o)[0].mode())(x)
            return _decoded(world.host.actions, chosen)

        traced = jax.make_jaxpr(act)(seen)
    graph, helper = Graph(onnx), onnx.helper
    results = graph.add(traced.jaxpr, traced.consts, ["observation"])
    graph.node("Identity", results, out="action")
    inputs, outputs = (
        [helper.make_tensor_value_info(name, graph.kind(of.dtype), of.shape)]
        for name, of in (("observation", seen), ("action", traced.out_avals[0]))
    )
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)], producer_name="bayespg", ir_version=8,
    )  # fmt: skip
    onnx.checker.check_model(model)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, model.SerializeToString())


def _decoded(actions: Actions, chosen: Any) -> Any:
    """`actions.decode` in JAX."""
    if isinstance(actions, Bounded):
        return actions.within(chosen, jnp)
    starts = actions._starts.astype(np.int32)
    if actions.scalar:
        return chosen + starts[0]
    return (chosen + starts).reshape(len(chosen), *(actions._space.shape or ()))


PLAIN = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "sin": "Sin", "cos": "Cos", "sqrt": "Sqrt", "floor": "Floor", "logistic": "Sigmoid",
    "erf": "Erf", "pow": "Pow", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual",
    "le": "LessOrEqual", "eq": "Equal", "and": "And", "or": "Or", "not": "Not", "round": "Round",
    "copy": "Identity", "stop_gradient": "Identity",
}  # fmt: skip
"""Primitives of JAX that are an operation of ONNX."""
NESTED = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


class Graph:
    """Nodes and constants of an ONNX graph, in the making."""

    def __init__(self, onnx: Any):
        self._onnx, self.nodes, self.constants = onnx, [], []

    def name(self) -> str:
        return f"v{len(self.nodes) + len(self.constants)}"

    def kind(self, dtype: Any) -> int:
        """The type of ONNX for numbers of this type: there is one for integers and one for
        others."""
        kinds = self._onnx.TensorProto
        if dtype == np.bool_:
            return kinds.BOOL
        return kinds.INT64 if np.issubdtype(dtype, np.integer) else kinds.FLOAT

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        if array.dtype != np.bool_:
            whole = np.issubdtype(array.dtype, np.integer)
            array = array.astype(np.int64 if whole else np.float32)
        name = self.name()
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, inputs: list[str], out: str | None = None, **attributes: Any) -> str:
        name = out or self.name()
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def shaped(self, x: str, shape: Any) -> str:
        return self.node("Reshape", [x, self.constant(np.array(shape, int))])

    def add(self, jaxpr: Any, consts: Any, inputs: list[str]) -> list[str]:
        """The operations of a traced function; the names of its results."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= {v: self.constant(c) for v, c in zip(jaxpr.constvars, consts, strict=True)}

        def at(x: Any) -> str:
            return self.constant(x.val) if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            given, p = [at(x) for x in equation.invars], equation.params
            kind = equation.primitive.name
            if kind in NESTED:
                inner = p.get("jaxpr") or p.get("call_jaxpr")
                closed = getattr(inner, "jaxpr", inner)
                outputs = self.add(closed, getattr(inner, "consts", []), given)
            elif kind in PLAIN:
                outputs = [self.node(PLAIN[kind], given)]
            elif kind in OTHERS:
                outputs = [OTHERS[kind](self, given, equation)]
            else:
                raise ValueError(f"export: the policy uses {kind}, which has no form in ONNX here")
            known |= dict(zip(equation.outvars, outputs, strict=True))
        return [at(x) for x in jaxpr.outvars]


Operation = Callable[[Graph, list[str], Any], str]
"""From the graph, the names of the inputs and the equation of a primitive to its result."""


def _dot(g: Graph, given: list[str], e: Any) -> str:
    """A product of tensors as an Einstein sum."""
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    letters = iter(string.ascii_lowercase)
    one, other = ([next(letters) for _ in x.aval.shape] for x in e.invars)
    for i, j in zip((*left, *left_batch), (*right, *right_batch), strict=True):
        other[j] = one[i]
    batch, summed = ([one[i] for i in axes] for axes in (left_batch, left))
    kept = [x for x in (*one, *other) if x not in (*batch, *summed)]
    terms = ("".join(letters) for letters in (one, other, [*batch, *kept]))
    return g.node("Einsum", given, equation="{},{}->{}".format(*terms))


def _broadcast(g: Graph, given: list[str], e: Any) -> str:
    shape = e.params["shape"]
    ones = [1] * len(shape)
    for size, axis in zip(e.invars[0].aval.shape, e.params["broadcast_dimensions"], strict=True):
        ones[axis] = size
    return g.node("Expand", [g.shaped(given[0], ones), g.constant(np.array(shape, int))])


def _slice(g: Graph, given: list[str], e: Any) -> str:
    p, axes = e.params, range(len(e.params["start_indices"]))
    parts = (p["start_indices"], p["limit_indices"], axes, p["strides"] or [1] * len(axes))
    return g.node("Slice", [*given, *(g.constant(np.array(x, int)) for x in parts)])


def _sum(g: Graph, given: list[str], e: Any) -> str:
    return g.node("ReduceSum", [*given, g.constant(np.array(e.params["axes"]))], keepdims=0)


def _extreme(kind: str) -> Operation:
    return lambda g, x, e: g.node(kind, x, axes=[int(a) for a in e.params["axes"]], keepdims=0)


def _stack(g: Graph, given: list[str], e: Any) -> str:
    axis = e.params["axis"]
    one = np.insert(e.invars[0].aval.shape, axis, 1)
    return g.node("Concat", [g.shaped(x, one) for x in given], axis=axis)


def _iota(g: Graph, given: list[str], e: Any) -> str:
    return g.constant(np.indices(e.params["shape"], e.params["dtype"])[e.params["dimension"]])


def _reshape(g: Graph, given: list[str], e: Any) -> str:
    return g.shaped(given[0], e.outvars[0].aval.shape)


OTHERS: dict[str, Operation] = {
    "dot_general": _dot,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "reduce_sum": _sum,
    "reduce_max": _extreme("ReduceMax"),
    "reduce_min": _extreme("ReduceMin"),
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "stack": _stack,
    "transpose": lambda g, x, e: g.node("Transpose", x, perm=list(e.params["permutation"])),
    "concatenate": lambda g, x, e: g.node("Concat", x, axis=e.params["dimension"]),
    "convert_element_type": lambda g, x, e: g.node("Cast", x, to=g.kind(e.params["new_dtype"])),
    "integer_pow": lambda g, x, e: g.node("Pow", [*x, g.constant(np.float32(e.params["y"]))]),
    "square": lambda g, x, e: g.node("Mul", [x[0], x[0]]),
    "rsqrt": lambda g, x, e: g.node("Reciprocal", [g.node("Sqrt", x)]),
    "select_n": lambda g, x, e: g.node("Where", [x[0], x[2], x[1]]),
    "clamp": lambda g, x, e: g.node("Min", [g.node("Max", [x[1], x[0]]), x[2]]),
    "argmax": lambda g, x, e: g.node("ArgMax", x, axis=int(e.params["axes"][0]), keepdims=0),
    "iota": _iota,
}
"""Primitives of JAX that take more than one operation, or arguments."""
