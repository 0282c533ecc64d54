"""A policy as an ONNX file, for programs without JAX: from raw observations to the most likely
actions, the normalisation of observations and the bounds of actions included.

The policy is traced by JAX, and each of its primitive operations becomes one or two of ONNX. So a
policy of your own can be exported too, as long as it is made of these operations; any other is
named. Numbers are float32.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from bayespg._support import checks
from bayespg._support.files import write_whole
from bayespg.environments.spaces import Bounded, Choices
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
    width = world.observation.shape[0]
    with jax.enable_x64(False):
        single: Any = as_dtype(acting, jnp.float32)
        seen = jax.ShapeDtypeStruct((batch, width), jnp.float32)

        def act(x):
            at = jax.vmap(lambda o: single.step(single.start(), o)[0].mode())(x)
            return _decoded(world.actions, at, batch)

        traced = jax.make_jaxpr(act)(seen)
    graph = Graph(onnx)
    result = graph.add(traced.jaxpr, traced.consts, ["observation"])[0]
    graph.node("Identity", [result], out="action")
    kind = onnx.TensorProto
    out = traced.out_avals[0]
    shown = kind.FLOAT if jnp.issubdtype(out.dtype, jnp.floating) else kind.INT64
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes, "policy",
            [onnx.helper.make_tensor_value_info("observation", kind.FLOAT, [batch, width])],
            [onnx.helper.make_tensor_value_info("action", shown, list(out.shape))],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="bayespg", ir_version=8,
    )  # fmt: skip
    onnx.checker.check_model(model)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, model.SerializeToString())


def _decoded(actions: Any, chosen: Any, batch: int) -> Any:
    """`actions.decode` in JAX."""
    match actions:
        case Choices():
            shape = () if actions.scalar else actions._space.shape or ()
            return (
                chosen + actions._starts.astype(np.int32).reshape(-1)[: chosen[0].size]
            ).reshape(batch, *shape)
        case Bounded():
            flat = chosen.reshape(batch, -1)
            inside = jnp.clip(flat, -1.0, 1.0)
            low, high, mid, half = (
                x.astype(np.float32)
                for x in (actions._low, actions._high, actions.middle, actions.half)
            )
            told = jnp.clip(mid + half * jnp.where(actions.bounded, inside, flat), low, high)
            if np.issubdtype(actions._space.dtype, np.integer):
                told = jnp.round(told)
            return told.reshape(batch, *actions._space.shape)
    raise ValueError("export: the actions of this environment are not known")


PLAIN = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min",
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "sin": "Sin", "cos": "Cos", "sqrt": "Sqrt", "floor": "Floor", "logistic": "Sigmoid",
    "erf": "Erf", "pow": "Pow", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual",
    "le": "LessOrEqual", "eq": "Equal", "and": "And", "or": "Or", "not": "Not",
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

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        if array.dtype in (np.float64, np.int32):
            array = array.astype(np.float32 if array.dtype == np.float64 else np.int64)
        name = self.name()
        self.constants.append(self._onnx.numpy_helper.from_array(np.array(array), name))
        return name

    def node(self, kind: str, inputs: list[str], out: str | None = None, **attributes: Any) -> str:
        name = out or self.name()
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

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

    def cast(self, x: str, dtype: Any) -> str:
        kinds = self._onnx.TensorProto
        to = kinds.INT64 if np.issubdtype(dtype, np.integer) else kinds.FLOAT
        return self.node("Cast", [x], to=kinds.BOOL if dtype == np.bool_ else to)

    def shaped(self, x: str, shape: Any) -> str:
        return self.node("Reshape", [x, self.constant(np.array(shape, np.int64))])


def _dot(g: Graph, given: list[str], e: Any) -> str:
    """A product of tensors as an Einstein sum."""
    (left, right), (left_batch, right_batch) = e.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    one = [next(letters) for _ in e.invars[0].aval.shape]
    other = [""] * len(e.invars[1].aval.shape)
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        other[j] = one[i]
    other = [letter or next(letters) for letter in other]
    summed = {one[i] for i in left}
    batch = [one[i] for i in left_batch]
    kept = [x for x in (*one, *other) if x not in summed and x not in batch]
    equation = f"{''.join(one)},{''.join(other)}->{''.join((*batch, *kept))}"
    return g.node("Einsum", given, equation=equation)


def _broadcast(g: Graph, given: list[str], e: Any) -> str:
    shape, at = e.params["shape"], e.params["broadcast_dimensions"]
    ones = [1] * len(shape)
    for i, j in enumerate(at):
        ones[j] = e.invars[0].aval.shape[i]
    x = g.shaped(given[0], ones) if ones else given[0]
    return g.node("Expand", [x, g.constant(np.array(shape, np.int64))]) if shape else x


def _slice(g: Graph, given: list[str], e: Any) -> str:
    p = e.params
    starts, ends = p["start_indices"], p["limit_indices"]
    strides = p["strides"] or [1] * len(starts)
    parts = (starts, ends, range(len(starts)), strides)
    return g.node("Slice", [given[0], *(g.constant(np.array(x, np.int64)) for x in parts)])


def _reduced(kind: str) -> Callable[[Graph, list[str], Any], str]:
    def add(g: Graph, given: list[str], e: Any) -> str:
        axes = [int(axis) for axis in e.params["axes"]]
        if kind == "ReduceSum":
            return g.node(kind, [given[0], g.constant(np.array(axes, np.int64))], keepdims=0)
        return g.node(kind, given, axes=axes, keepdims=0)

    return add


OTHERS: dict[str, Callable[[Graph, list[str], Any], str]] = {
    "dot_general": _dot,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "reduce_sum": _reduced("ReduceSum"),
    "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"),
    "reshape": lambda g, x, e: g.shaped(x[0], e.params["new_sizes"]),
    "squeeze": lambda g, x, e: g.shaped(x[0], e.outvars[0].aval.shape),
    "expand_dims": lambda g, x, e: g.shaped(x[0], e.outvars[0].aval.shape),
    "transpose": lambda g, x, e: g.node("Transpose", x, perm=list(e.params["permutation"])),
    "concatenate": lambda g, x, e: g.node("Concat", x, axis=e.params["dimension"]),
    "convert_element_type": lambda g, x, e: g.cast(x[0], e.params["new_dtype"]),
    "integer_pow": lambda g, x, e: g.node("Pow", [x[0], g.constant(np.float32(e.params["y"]))]),
    "square": lambda g, x, e: g.node("Mul", [x[0], x[0]]),
    "rsqrt": lambda g, x, e: g.node("Reciprocal", [g.node("Sqrt", x)]),
    "round": lambda g, x, e: g.node("Round", x),
    "select_n": lambda g, x, e: g.node("Where", [x[0], x[2], x[1]]),
    "clamp": lambda g, x, e: g.node("Min", [g.node("Max", [x[1], x[0]]), x[2]]),
    "argmax": lambda g, x, e: g.node("ArgMax", x, axis=int(e.params["axes"][0]), keepdims=0),
    "iota": lambda g, x, e: g.constant(_iota(e.params)),
}  # fmt: skip
"""Primitives of JAX that take more than one operation, or arguments."""


def _iota(p: Any) -> np.ndarray:
    shape, axis = p["shape"], p["dimension"]
    along = np.arange(shape[axis], dtype=p["dtype"])
    return np.broadcast_to(
        along.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape
    )
