"""A vision tower: what turns images into tokens of the language model, described as its layers are.

Patches enter an embedding, runs of equal blocks, what follows them, and a projector to the language model's width.
Nothing here knows a family's name; ``memplan/arch`` writes these from a config.json."""

from functools import cached_property
from typing import Literal, NamedTuple

from memplan.spec.base import Described
from memplan.spec.parts import Bare, FeedForward, Linear, Mixer, Norm, Part, add_counts


class VisionAttention(Mixer):
    """Attention of every patch of an image to every other, without a mask.

    ``linears``: q_proj, k_proj, v_proj and the output projection, or one fused qkv and the output projection."""

    kind: Literal["vision"] = "vision"
    category: str = "vision"
    head_dim: int
    blocked: bool = False
    """All patches stand in one sequence, under a mask of blocks (Pixtral)."""
    tiled: bool = False
    """The tiles of an image stand in one sequence, under a mask of those that are there (Llama 3.2 Vision)."""
    wide_softmax: bool = True
    """Eager attention's softmax is in fp32; else as autocast has it."""
    packed: bool = False
    """Patches of all images stand in one sequence, and attention runs image by image (or window by window)."""
    joined: Literal["", "mask", "math"] = ""
    """SDPA runs over all patches at once under a mask of booleans: 'mask'; 'math' where queries have no row, which no
    fused kernel takes. Empty: image by image, or window by window."""
    window_patches: int | None = None
    """Patches of a window, where attention is confined to windows (Qwen2.5-VL)."""
    rotary: Literal["none", "fp32", "narrow", "complex"] = "none"
    """'fp32': queries and keys turn in fp32 (Qwen, Kimi); 'narrow': in their dtype (Pixtral); 'complex' (Llama 4)."""


class ImageCross(Mixer):
    """Attention from the tokens of a text to its images (Llama 3.2 Vision): without images, no forward runs it.

    ``linears``: q_proj, k_proj, v_proj, o_proj; ``norms``: of q and of k, on each head."""

    kind: Literal["image-cross"] = "image-cross"
    num_kv_heads: int
    head_dim: int

    @property
    def masked(self) -> bool:
        """It takes a mask of its own, of texts against images."""
        return False


class Block(Described):
    """A layer of a tower: norm, attention, residual; norm, feed-forward, residual."""

    attention: VisionAttention
    feed_forward: FeedForward
    norms: tuple[Norm, Norm]
    scales: tuple[Bare, ...] = ()
    """Factors of the two branches, [h] each (InternVL's layer scale)."""
    gates: tuple[Bare, ...] = ()
    """Scalars whose tanh weighs the two branches (Llama 3.2 Vision)."""
    clipped: bool = False
    """Inputs and outputs of its linears are clamped (Gemma 4)."""
    form: Literal["vit", "positions"] = "vit"
    """As ``Layer.form``."""
    frozen: frozenset[str] = frozenset()
    """As ``Layer.frozen``."""
    narrow_input: bool = False
    """As ``Layer.narrow_input``."""
    projected_input: bool = False
    """As ``Layer.projected_input``."""
    leaf_input: bool = False
    """As ``Layer.leaf_input``."""
    cross: None = None
    """As ``Layer.cross``: it has none."""
    streams: int = 1
    """As ``Layer.streams``."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything that holds parameters."""
        own = Part(tensors=(*self.scales, *self.gates), norms=self.norms)
        return self.attention, self.feed_forward, own

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every nn.Linear."""
        return (*self.attention.linears, *self.feed_forward.linears)

    @property
    def width(self) -> int:
        """Elements per patch of what comes in and goes out."""
        return self.norms[0].width

    @cached_property
    def parameters(self) -> int:
        """All parameter elements."""
        return sum(sum(part.by_category.values()) for part in self.parts)


class BlockRun(Described):
    """``count`` equal blocks in a row."""

    count: int
    block: Block


class ImageRule(Described):
    """How the processor of a model cuts an image, as data for ``memplan/resolve/image_cuts.py``.

    Sides are in pixels, tokens are positions in the language model's sequence."""

    kind: Literal[
        "smart-resize",
        "fixed",
        "anyres",
        "tiles",
        "split",
        "quarters",
        "longest-edge",
        "native",
        "budget",
        "best-fit",
        "canvas",
    ]
    """A key of ``resolve.image_cuts.CUTS``."""
    patch: int
    """Side of a patch."""
    merge: int = 1
    """Patches a side that become one token."""
    side: int = 0
    """Side of the square that every image or tile is resized to."""
    tokens: int = 0
    """Tokens of one such square."""
    extra_patches: int = 0
    """Class tokens and padding beside the patches of a square."""
    channels: int = 3
    frames: int = 1
    """Frames of a patch: a still image is repeated so often (Qwen)."""
    min_pixels: int = 0
    max_pixels: int = 0
    max_tiles: int = 1
    longest: int = 0
    """Longest side that an image is scaled to before it is cut."""
    shortest: int = 0
    """What every side is at least scaled to."""
    grids: tuple[tuple[int, int], ...] = ()
    """Resolutions (height, width) to choose from."""


class Resampler(Described):
    """A perceiver: layers in which latents attend to all patches of an image and to themselves (Idefics 2)."""

    latents: int
    """Tokens that come out, however many patches go in."""
    depth: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: str
    activation_before: str
    """That of the gated projection in front."""


class TowerPart(NamedTuple):
    """A part of a tower, and how often it is there."""

    part: Part
    copies: int
    category: str
    """vision or projector."""
    is_read: bool = True
    """Its output reaches the language model, so that it gets gradients."""
    is_unit: bool = False
    """FSDP2 makes it a unit of its own, or part of one (``Tower.units``)."""


class Tower(Described):
    """The tower and its projector."""

    kind: str
    """A key of ``engine.vision.TOWERS``: which program runs it."""
    width: int
    embedding: Part
    """Patch embedding, positions, class tokens, a norm before the blocks."""
    runs: tuple[BlockRun, ...]
    after: Part = Part()
    """Norms and heads behind the blocks."""
    projector: Part
    """From the tower's width to the language model's."""
    projection: str = ""
    """A key of ``engine.projection.PROJECTIONS``; empty where images are not modelled yet."""
    resampler: Resampler | None = None
    """What reads the projected patches into latents."""
    checkpoints: bool = True
    """Its blocks are checkpoints where the language model's layers are."""
    fails: str = ""
    """Why its class itself fails on images."""
    masked: bool = False
    """Tokens of an image attend to each other, so that every layer of the language model takes a mask."""
    masks_windows: bool = False
    """The same in layers with a window alone: these take a mask of their own for each row."""
    standardized: bool = False
    """What is pooled is shifted and scaled (Gemma 4)."""
    taps: tuple[int, ...] = ()
    """Blocks whose outputs leave the tower beside the last one's."""
    used_blocks: int
    """Blocks up to the one whose output is read: those behind it run, and get no gradient."""
    after_is_read: bool = True
    """The norms behind the blocks stand before the projector; else only a pooled output, which nobody reads."""
    rule: ImageRule
    unused: Part = Part()
    """Parameters that no forward reads, such as a pooling head."""
    unadapted: frozenset[str] = frozenset()
    """Parts without adapters where the language model has some: vision, projector."""
    trained: frozenset[str] = frozenset()
    """Parts that are trained whole beside adapters."""
    units: frozenset[str] = frozenset({"blocks"})
    """What the class and those inside it name in ``_no_split_modules``, and FSDP2 thus wraps: blocks, or their
    attention alone; the embedding (but for its norms), a pooling head (unused), the projector."""

    older: bool = False
    """Its class is of transformers before 5.24."""

    @property
    def in_outputs(self) -> bool:
        """The model's outputs hold those of the tower, until the loss is whole (transformers 5.24: image_outputs); not
        in Llama 4, whose class fails there."""
        return not self.older and not self.loss_within

    @property
    def masks_text(self) -> bool:
        """Layers take a mask of each row without images too (transformers 5.24 modeling_gemma4_unified.py)."""
        return self.masked and self.kind == "gemma4_unified"

    @property
    def crossed(self) -> bool:
        """Layers of the language model attend to what it gives, in place of tokens in the sequence."""
        return self.projection == "crossed"

    @property
    def cast_pixels(self) -> bool:
        """The class does not cast pixels to its weights' dtype, so that they come in it (Llama 4, Kimi K2.5)."""
        return self.kind in ("llama4", "kimi")

    @property
    def loss_within(self) -> bool:
        """The class that embeds images computes the loss too (Llama 4)."""
        return self.kind == "llama4"

    @property
    def pixel_masks(self) -> bool:
        """The processor gives a mask of pixels, in int64 (Idefics 2 and 3)."""
        return self.kind == "idefics"

    def masks(self, pixels: int, squares: int, length: int) -> int:
        """Bytes of the int64 masks that the processor gives with an image: of pixels; or two positions of each patch;
        or its arrangement, the tiles that are there and those that each position of a text of ``length`` attends to."""
        if self.kind in ("gemma4", "gemma4_unified"):
            return 16 * pixels // (self.rule.channels * self.rule.patch**2)
        crossed = 8 * (1 + squares * (1 + length)) if self.crossed else 0
        return 8 * pixels // self.rule.channels if self.pixel_masks else crossed

    @property
    def num_layers(self) -> int:
        """Blocks of all runs."""
        return sum(run.count for run in self.runs)

    @property
    def parts(self) -> tuple["TowerPart", ...]:
        """Everything that holds parameters: vision, then projector."""
        patches, norms = self.embedding.but(norms=()), Part(norms=self.embedding.norms)
        found = [TowerPart(patches, 1, "vision", is_unit="embedding" in self.units), TowerPart(norms, 1, "vision")]
        left = self.used_blocks
        for run in self.runs:
            used, left = min(run.count, left), max(left - run.count, 0)
            for copies, is_read in ((used, True), (run.count - used, False)):
                for part in run.block.parts if copies else ():
                    own = "blocks" in self.units or ("attention" in self.units and part is run.block.attention)
                    found.append(TowerPart(part, copies, "vision", is_read, own))
        found += [
            TowerPart(self.after, 1, "vision", self.after_is_read),
            TowerPart(self.unused, 1, "vision", False, "unused" in self.units),
        ]
        return (*found, TowerPart(self.projector, 1, "projector", is_unit="projector" in self.units))

    @cached_property
    def by_category(self) -> dict[str, int]:
        """Parameter elements of the tower and of its projector."""
        counts: dict[str, int] = {}
        for each in self.parts:
            add_counts(counts, [(each.category, sum(each.part.by_category.values()))], each.copies)
        return counts

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every kind of nn.Linear, which LoRA may adapt."""
        return tuple(linear for each in self.parts for linear in each.part.linears)
