"""Which linears of a layer make its attention and its feed-forward, by their names and shapes."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.spec.parts import Attention, Bare, Experts, FeedForward, Linear, Norm

SPREADS = {
    "attention": (0.95, 1.66),
    "more modules": (0.91, 1.97),
    "experts": (0.83, 3.69),
    "other mixers": (0.14, 13.45),
}
"""What comes and goes in a step over what is derived, lowest and highest of all types compared, by layers: attention
and a dense feed-forward; these, and norms or parameters that no program takes; routed experts (Llama 4's see every
token); something else than attention, or more, that mixes positions: a state space, low ranks, sinks."""

OUTPUT = re.compile(r"o(ut)?_?(proj|lin)?|wo|dense|c_proj|to_out|output")
NAMES = {
    "q": re.compile(r"q(_?proj|_lin|uery)?|wq|query(_proj|_layer)?"),
    "k": re.compile(r"k(_?proj|_lin|ey)?|wk|key(_proj|_layer)?"),
    "v": re.compile(r"v(_?proj|_lin|alue)?|wv|value(_proj|_layer)?"),
}
EXPERT = re.compile(r"(.*experts)\.(\d+)\.(.+)")
ACTIVE = (
    "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k", "moe_top_k",
    "experts_per_token", "num_selected_experts", "top_k",
)  # fmt: skip
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")


def number(config: Any, *keys: str) -> int:
    """The first of these keys of a config that holds a whole number; 0 where none does."""
    values = (getattr(config, key, None) for key in keys)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), 0)


def attention_of(
    linears: Mapping[str, Linear],
    norms: Mapping[str, Norm],
    text: Any,
    hidden: int,
    window: int | None,
    eager_only: bool,
) -> tuple[Attention | None, set[str]]:
    """Attention by q, k, v and output linears, or by one fused linear and an output; and the paths that it uses.

    Heads are the config's; where it has none, or they do not divide what the linears make, one head of that width."""
    into = [path for path, linear in linears.items() if linear.inputs == hidden]
    outs = [path for path, linear in linears.items() if linear.outputs == hidden]
    named = {
        key: next((path for path in into if pattern.fullmatch(linears[path].name)), "")
        for key, pattern in NAMES.items()
    }
    if all(named.values()):
        paths = [named["q"], named["k"], named["v"]]
        q_width, kv_width = linears[named["q"]].outputs, linears[named["k"]].outputs
        outs = [path for path in outs if path not in paths]
        out = last_of(linears, [path for path in outs if linears[path].inputs == q_width] or outs)
    else:
        out = last_of(linears, outs)
        others = [path for path in into if path != out]
        paths = [max(others, key=lambda path: linears[path].outputs)] if others else []
        q_width = linears[out].inputs if out else 0
        left = (linears[paths[0]].outputs - q_width) // 2 if paths else 0
        kv_width = left if 0 < left <= q_width else q_width
    if not paths or not out:
        return None, set()
    heads, head_dim = heads_of(text, q_width)
    kv_heads = max(1, kv_width // head_dim)
    of_heads = paired(norms, q_width, kv_width, head_dim)
    made = Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        linears=tuple(linears[path] for path in (*paths, out)),
        norms=tuple(norms[path].but(width=norms[path].width or head_dim) for path in of_heads),
        rotary="half" if getattr(text, "rope_parameters", None) or hasattr(text, "rope_theta") else "none",
        window=window,
        eager_only=eager_only,
    )
    return made, {*paths, out, *of_heads}


def last_of(linears: Mapping[str, Linear], paths: list[str]) -> str:
    """The one that is named as an output is, or the last."""
    return next((path for path in paths if OUTPUT.fullmatch(linears[path].name)), paths[-1] if paths else "")


def heads_of(text: Any, width: int) -> tuple[int, int]:
    """Heads and the width of one."""
    heads = number(text, "num_attention_heads", "n_head", "num_heads")
    if heads and width % heads == 0:
        return heads, width // heads
    return 1, width


def paired(norms: Mapping[str, Norm], q_width: int, kv_width: int, head_dim: int) -> list[str]:
    """The norms of q and of k, of a head or of all, where there are both."""
    found = []
    for letter, whole in (("q", q_width), ("k", kv_width)):
        fits = (p for p, norm in norms.items() if norm.width in (0, whole, head_dim) and "." in p)
        found += [path for path in fits if re.match(letter, path.rpartition(".")[2])][:1]
    return found if len(found) == 2 else []


def feed_forward_of(
    linears: Mapping[str, Linear], tensors: Mapping[str, Bare], text: Any, hidden: int
) -> tuple[FeedForward | None, set[str]]:
    """A feed-forward, gated or plain, dense or routed; and the paths that it uses."""
    act = next((getattr(text, key) for key in ACTIVATIONS if isinstance(getattr(text, key, None), str)), "silu")
    experts, used = experts_of(linears, tensors, text, act)
    left = {path: linear for path, linear in linears.items() if path not in used}
    shared = {path: linear for path, linear in left.items() if "shared" in path} if experts else {}
    dense = {path: linear for path, linear in left.items() if path not in shared}
    if experts:
        beside, gated = product(shared or dense, hidden)
        fits = beside if len(beside) == 3 or (len(beside) == 2 and gated == experts.gated) else []
        of_shared = tuple((shared or dense)[path] for path in fits)
        made = FeedForward(
            intermediate=experts.intermediate, activation=act, gated=experts.gated, experts=experts, shared=of_shared
        )
        return made, used | set(fits)
    paths, gated = product(dense, hidden)
    if not paths:
        return None, set()
    width = dense[paths[-1]].inputs
    return FeedForward(intermediate=width, activation=act, gated=gated, linears=tuple(dense[p] for p in paths)), set(
        paths
    )


def product(linears: Mapping[str, Linear], hidden: int) -> tuple[list[str], bool]:
    """Paths of gate, up and down; of both fused and down; or of up and down. And whether there is a gate."""
    downs = [path for path, linear in linears.items() if linear.outputs == hidden]
    for down in reversed(downs):
        width = linears[down].inputs
        ups = [path for path, linear in linears.items() if linear.inputs == hidden and path != down]
        alike = [path for path in ups if linears[path].outputs == width]
        both = [path for path in ups if linears[path].outputs == 2 * width]
        if len(alike) >= 2:
            first, second = sorted(alike[:2], key=lambda path: "up" in linears[path].name)
            return [first, second, down], True
        if both:
            return [both[0], down], True
        if alike:
            return [alike[0], down], False
    return [], False


def experts_of(
    linears: Mapping[str, Linear], tensors: Mapping[str, Bare], text: Any, act: str
) -> tuple[Experts | None, set[str]]:
    """Routed experts: stacked parameters, or a list of modules, with the router that chooses among them."""
    stacks, used = stacked_experts(linears, tensors)
    matrices = [stack for stack in stacks if len(stack.shape) == 3]
    if len(matrices) < 2 or len({stack.shape[0] for stack in matrices}) > 1:
        return None, set()
    count = matrices[0].shape[0]
    router = router_of(linears, tensors, count)
    active = number(text, *ACTIVE)
    if router is None or not 0 < active <= count:
        return None, set()
    path, linear = router
    down = next(
        (s for s in reversed(matrices) if "down" in s.name or "w2" in s.name or "output" in s.name), matrices[-1]
    )
    into = [stack for stack in matrices if stack is not down]
    elements = sum(stack.parameters for stack in into)
    per_expert = down.parameters // count
    hidden = linear.inputs
    width = per_expert // hidden
    gated = elements == 2 * down.parameters
    biases = [stack for stack in stacks if len(stack.shape) == 2]
    if per_expert % hidden or elements % down.parameters or biases:
        return None, set()
    first = Bare(
        name="experts.gate_up_proj" if gated else "experts.up_proj", shape=(count, elements // count // hidden, hidden)
    )
    stacked = (first, Bare(name="experts.down_proj", shape=(count, hidden, width)))
    made = Experts(
        count=count, active=active, intermediate=width, stacked=stacked, router=linear, gated=gated, activation=act
    )
    return made, used | path


def stacked_experts(linears: Mapping[str, Linear], tensors: Mapping[str, Bare]) -> tuple[list[Bare], set[str]]:
    """The parameters of all experts together: stacked as they are, or of a list of modules, one stack for each name."""
    whole = {path: bare for path, bare in tensors.items() if "expert" in path and "shared" not in path}
    stacks = {path: bare for path, bare in whole.items() if len(bare.shape) in (2, 3) and "router" not in path}
    if any(len(bare.shape) == 3 for bare in stacks.values()):
        return list(stacks.values()), set(stacks)
    listed: dict[str, list[str]] = {}
    for path in linears:
        if match := EXPERT.fullmatch(path):
            listed.setdefault(match[3], []).append(path)
    made = [
        Bare(name=name, shape=(len(paths), linears[paths[0]].outputs, linears[paths[0]].inputs))
        for name, paths in listed.items()
        if not linears[paths[0]].bias
    ]
    return made, {path for paths in listed.values() for path in paths}


def router_of(linears: Mapping[str, Linear], tensors: Mapping[str, Bare], count: int) -> tuple[set[str], Linear] | None:
    """What scores the experts: a linear, or a matrix of a class of its own, of one row for each expert."""
    for path, linear in linears.items():
        if linear.outputs == count and re.search(r"gate|router|wg", path):
            return {path}, linear
    for path, bare in tensors.items():
        if len(bare.shape) == 2 and bare.shape[0] == count and re.search(r"gate|router|wg", path):
            return {path}, Linear(
                name=path.split(".")[-2] if "." in path else path, inputs=bare.shape[1], outputs=count
            )
    return None
