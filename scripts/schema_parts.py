"""What the JSON schemas are made of: types, and what several answers hold."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def number(about: str, low: int | None = 0) -> Schema:
    """A whole number."""
    return {"type": "integer", "description": about} | ({} if low is None else {"minimum": low})


def text(about: str, *choices: str) -> Schema:
    """A string, one of ``choices`` if there are any."""
    return {"type": "string", "description": about} | ({"enum": list(choices)} if choices else {})


def switch(about: str) -> Schema:
    """True or false."""
    return {"type": "boolean", "description": about}


def many(items: Schema, about: str, count: int | None = None) -> Schema:
    """An array, of ``count`` entries if that is given."""
    bounds = {} if count is None else {"minItems": count, "maxItems": count}
    return {"type": "array", "description": about, "items": items, **bounds}


def entry(about: str, **fields: Schema) -> Schema:
    """An object with exactly these fields."""
    return {
        "type": "object",
        "description": about,
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def maybe(schema: Schema) -> Schema:
    """``schema``, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def uses(about: str, **more: Schema) -> Schema:
    """Bytes of weights, of caches and states, and of the compute buffer."""
    return entry(
        about,
        **more,
        model=number("weights, bytes"),
        context=number("caches and states, bytes"),
        compute=number("the compute buffer, bytes"),
    )


NOTES = many(text("a sentence"), "what to know about it")
PAIR = many(number("of the prompt graph, then of the generation graph"), "both graphs", 2)


def _model(about: str) -> Schema:
    return entry(
        about,
        name=text("as the file names itself, or the built-in name"),
        architecture=text("general.architecture"),
        path=text("the file, its address, or the built-in name"),
        bytes=number("its tensors, without padding"),
        parameters=number("elements of all tensors"),
    )


def _refusal(about: str) -> Schema:
    return maybe(
        entry(
            about,
            kind=text("a stable name"),
            how=text("with a message, or by an assertion", "refused", "abort"),
            said=text("llama.cpp's words"),
        )
    )


def estimate() -> Schema:
    """``memplan estimate --json``."""
    device = uses(
        "a GPU",
        name=text("llama.cpp's name for it: CUDA0"),
        description=text("the card"),
        total=number("its memory, bytes"),
        free=number("what of it is free before llama.cpp starts, bytes"),
    )
    device["properties"] |= {
        "draft": number("what drafts, on this GPU, bytes"),
        "projector": number("a multimodal projector's weights, on this GPU, bytes"),
        "run_time": number("what kernels take: CUDA's pool and cuBLAS's workspace, bytes"),
        "reserve": number("what should be left for what no rule has, bytes"),
        "left": number("free bytes once slots hold what they shall, below 0 when it does not fit", None),
    }
    device["required"] += ["draft", "projector", "run_time", "reserve", "left"]
    host = uses(
        "what lies in the host's memory", draft=number("what drafts, bytes"), projector=number("a projector, bytes")
    )
    host["properties"] |= {
        "mapped": number("weights of these that are pages of the file, which may be dropped and read again, bytes"),
        "pinned": number("what of these is asked for as pinned memory, bytes"),
        "loading": number("what copies of weights to GPUs hold while the model is loaded, bytes"),
        "least": number("what the machine must have, GPUs' own memory and pages of the file left out, bytes"),
        "most": maybe(number("the same with those pages and all that server says, bytes; null: no limit")),
        "total": maybe(number("its size, bytes; null where it is not known")),
        "short": number("what it lacks, for GPUs too whose memory is its own, bytes"),
    }
    host["required"] += ["mapped", "pinned", "loading", "least", "most", "total", "short"]
    buffers: Schema = {
        "type": "object",
        "description": "by buffer type; empty when llama.cpp would not start",
        "additionalProperties": uses("one kind of buffer"),
    }
    return entry(
        "what llama.cpp allocates for a model with these flags on these GPUs",
        model=_model("the model"),
        llama=text("the release that was followed"),
        app=text("whose defaults hold", "server", "cli"),
        n_ctx=number("tokens of all sequences together"),
        n_ctx_seq=number("tokens of one sequence"),
        buffers=buffers,
        draft=maybe(
            entry(
                "the second context, in which llama-server drafts; null without one",
                model=_model("what drafts; the model itself where its own MTP block does"),
                buffers={**buffers, "description": "by buffer type; model is 0 where an MTP block drafts"},
            )
        ),
        run_time={
            "type": "object",
            "description": "what kernels take beside the buffers once slots hold filled tokens, by device, bytes",
            "additionalProperties": number("CUDA's pool and cuBLAS's workspace"),
        },
        filled=number("tokens that each slot holds when run time is counted"),
        devices=many(device, "every GPU, in order"),
        host=host,
        fits=switch("whether it starts, and has room for what kernels take"),
        starts=switch("whether llama.cpp starts, and every buffer fits"),
        tight=many(text("its name"), "GPUs with less left than their reserve"),
        short_at=maybe(number("tokens a slot from which a GPU is short, where it starts and does not fit")),
        run_time_not_modelled=many(text("its name"), "devices whose run-time scratch no rule has"),
        server=entry(
            "what llama-server may come to keep on the host beside that, bytes at most",
            outputs=number("logits that a batch hands back"),
            checkpoint=number("one context checkpoint"),
            checkpoints=number("all context checkpoints of all slots"),
            prompt_cache=maybe(number("the prompt cache; null: no limit")),
        ),
        graph=entry("the graphs", nodes=PAIR, splits=PAIR),
        disabled=many(text("in llama.cpp's words"), "fused operations that this release turns off by itself"),
        pipeline_parallel=switch("whether four copies of every split's inputs are kept"),
        exact=switch("whether these are llama.cpp's own numbers, to the byte"),
        notes=NOTES,
        refused=_refusal("why llama.cpp would not start"),
        draft_refused=_refusal("why llama-server gives up, for it cannot make the context that drafts"),
    )


SHAPE = many(number("elements"), "innermost first", 4)
LAYER = maybe(number("the layer it belongs to, if to one"))


def placed() -> Schema:
    """A tensor and its stay."""
    return entry(
        "a tensor of the prompt graph, and its stay in a compute buffer",
        name=text("as llama.cpp's callback gives it: lid_kq-2"),
        base=text("what it is, layer left out: lid_kq"),
        op=text("ggml's operation"),
        type=text("ggml's type"),
        shape=SHAPE,
        layer=LAYER,
        bytes=number("what it takes in the buffer"),
        chunk=number("the chunk of the buffer it lies in"),
        offset=number("where in the chunk, bytes"),
        first=number("the node at which it gets its place; -1: before the first", -1),
        last=number("the last node at which it has it", -1),
        in_place_of=text("the tensor whose place it took over, or empty"),
    )
