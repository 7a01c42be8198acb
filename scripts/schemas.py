"""The JSON schemas under docs/schemas: ``python scripts/schemas.py`` writes them, a test keeps them true."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
FOLDER = TOP / "docs" / "schemas"
sys.path.insert(0, str(TOP))

from scripts.comparison_schemas import comparison, paths, slots  # noqa: E402
from scripts.schema_parts import (  # noqa: E402
    LAYER,
    NOTES,
    PAIR,
    SHAPE,
    Schema,
    entry,
    estimate,
    many,
    maybe,
    number,
    placed,
    switch,
    text,
)


def _axis() -> Schema:
    return entry(
        "what was varied",
        name=text("as it was asked for: ctx"),
        flags=many(text("a flag of llama-server's"), "the flags it sets; empty for llama, gpu, indexer and app"),
        values=many({"anyOf": [number("", None), text("")]}, "in order"),
    )


def _values() -> Schema:
    return {
        "type": "object",
        "description": "the value of each axis, by its name",
        "additionalProperties": {"anyOf": [number("", None), text("")]},
    }


def sweep() -> Schema:
    """``memplan sweep --json``."""
    point = entry("one combination of the axes' values", values=_values(), estimate=estimate())
    return entry(
        "one estimate for every combination",
        axes=many(_axis(), "what was varied, the last one fastest"),
        points=many(point, "in order"),
    )


def largest() -> Schema:
    """``memplan sweep --max NAME --json``, and with ``--min``."""
    found = entry(
        "the largest or smallest value with one combination of the other axes' values",
        values=_values(),
        value=maybe(number("the last that fits; null when none does", None)),
        method=text("how it was found", "bisection", "scan"),
        tried=number("estimates that took"),
        estimate=estimate(),
        beyond=maybe(entry("the next value, which does not fit", value=number("it", None), estimate=estimate())),
    )
    return entry(
        "the largest or smallest values with which everything fits",
        axis=text("the setting that was made as large or as small as possible"),
        bound=text("which", "largest", "smallest"),
        margin=number("bytes to be left on every GPU"),
        axes=many(_axis(), "the other axes"),
        found=many(found, "one for each combination of the others"),
    )


def explanation() -> Schema:
    """``memplan explain --json``."""
    gap = entry(
        "unused bytes between live tensors",
        chunk=number(""),
        offset=number("bytes"),
        bytes=number("bytes"),
        left_by=text("the last tensor that filled most of it"),
    )
    group = entry(
        "live tensors of one base name",
        base=text("the name"),
        bytes=number("all of them"),
        count=number("how many"),
        layers=many(number(""), "their layers"),
    )
    peak = entry(
        "the moment at which a chunk is fullest; live and gaps add up to its bytes",
        chunk=number(""),
        bytes=number("the chunk's size"),
        node=number("the node being computed; -1: before the first", -1),
        tensor=text("the tensor that gets the highest place"),
        live=many(placed(), "largest first"),
        gaps=many(gap, "largest first"),
        groups=many(group, "largest first"),
    )
    buffer = entry(
        "one device's compute buffer",
        device=text("CUDA0"),
        buffer=text("its buffer type, as in the estimate"),
        bytes=number("its size"),
        verdict=text("which tensor it is, in a sentence"),
        peaks=many(peak, "one for each chunk: nearly always one"),
    )
    source = entry(
        "what a split reads from another device",
        name=text("the tensor"),
        type=text("ggml's type"),
        shape=SHAPE,
        source=text("the device, or a weight's buffer type"),
        bytes=number("one copy"),
        copies=number("how many are kept"),
        weight=switch("whether it is a weight kept elsewhere"),
    )
    resident = entry(
        "a tensor that exists before any graph",
        kind=text("what it is", "weight", "cache", "state"),
        name=text("its name"),
        type=text("ggml's type"),
        shape=SHAPE,
        layer=LAYER,
        buffer=text("the buffer type it lies in"),
        bytes=number("what it takes there"),
    )
    split = entry(
        "a run of nodes on one device",
        device=text("CUDA0"),
        first=number("node"),
        last=number("node", -1),
        inputs=many(source, "copied there first"),
    )
    return entry(
        "where an estimate's bytes come from; lists are empty when llama.cpp would not start",
        estimate=estimate(),
        buffers=many(buffer, "GPUs first"),
        largest=many(placed(), "the largest tensors of the graph"),
        splits=many(split, "of the prompt graph, in order"),
        residents=many(resident, "every weight, cache and state"),
    )


def run_time() -> Schema:
    """``memplan explain --run-time --json``."""
    source = entry("what the op reads", name=text("the tensor, layer left out"), type=text("ggml's type"), shape=SHAPE)
    op = entry(
        "ops of one name that hold as much scratch while they are computed, each alone",
        base=text("what they are called, layer left out"),
        op=text("ggml's operation"),
        layers=many(number(""), "the layers they are part of"),
        count=number("how many they are"),
        tokens=number("tokens of the batch that is computed"),
        filled=number("tokens that the slot holds with them"),
        sources=many(source, "what the first of them reads"),
        bytes=number("all pieces together, each rounded up"),
        pieces=many(entry("a piece of scratch", what=text("what it is for"), bytes=number("it")), "in order"),
        cublas=switch("whether it goes through cuBLAS"),
    )
    device = entry(
        "what one device takes at run time",
        device=text("CUDA0"),
        drafts=switch("whether this is what the context that drafts takes there beside the model's own"),
        modelled=switch("whether there is a rule for this kind of device; without one nothing else is known"),
        bytes=number("pool and workspace"),
        pool=number("the most that one op holds at once, in the pool's steps"),
        workspace=number("cuBLAS's, if any product goes through it"),
        verdict=text("which op decides, in a sentence"),
        ops=many(op, "the one that decides first"),
    )
    return entry(
        "where an estimate's run time comes from; devices is empty when llama.cpp would not start",
        estimate=estimate(),
        devices=many(device, "GPUs in order"),
    )


def devices() -> Schema:
    """``memplan devices --json``."""
    gpu = entry(
        "a GPU",
        name=text("llama.cpp's name for it"),
        description=text("the card"),
        total=number("bytes"),
        free=number("bytes"),
        compute_capability=maybe(text("of a CUDA device: 8.6")),
    )
    return entry(
        "this machine",
        source=maybe(text("who told; null without a GPU")),
        gpus=many(gpu, "in order"),
        host=entry("its memory", total=maybe(number("bytes")), free=maybe(number("bytes"))),
        unified=switch("whether GPUs and host share one memory"),
        notes=NOTES,
    )


def cards() -> Schema:
    """``memplan devices --known --json``."""
    card = entry(
        "a card",
        name=text("the name that --gpu takes"),
        maker=text("who makes it"),
        backend=text("its backend unless another is asked for, as llama.cpp's device names begin"),
        total_mib=maybe(number("MiB; null where only its owner knows")),
        bandwidth_gb_s=maybe(number("its memory's peak", None)),
        multiprocessors=maybe(number("of a CUDA device")),
        compute_capability=maybe(text("of a CUDA device: 8.6")),
    )
    return entry("the cards that memplan knows", cards=many(card, "by maker"))


def diagnosis() -> Schema:
    """``memplan diagnose --json``."""
    failed = entry(
        "what failed",
        kind=text("what happened", "allocation", "assertion", "refused", "killed", "cuda"),
        stage=text("what llama.cpp was doing"),
        buffer=maybe(text("the buffer type")),
        bytes=maybe(number("what was asked for")),
        said=text("llama.cpp's words, or the system's"),
    )
    row = entry(
        "one buffer",
        name=text("its type"),
        part=text("what it is for", "model", "context", "compute"),
        draft=switch("of what drafts"),
        logged=number("bytes in the log"),
        predicted=number("bytes that memplan predicts"),
        agrees=switch("equal, as far as the log's digits tell"),
    )
    load = entry(
        "one load of a model",
        line=number("the log's line where it begins"),
        build=maybe(number("llama.cpp's build")),
        llama=maybe(text("the release that was followed")),
        path=maybe(text("the model's file")),
        model=maybe(text("the model that the prediction is for")),
        args=many(text("a flag or a value"), "the flags that the prediction is for"),
        guessed=many(text("a flag or a value"), "those found by trying"),
        assumed=many(text("a flag"), "flags that nobody told: the program's defaults stand for them"),
        failed=maybe(failed),
        cause=entry("why", kind=text("a stable name"), text=text("a sentence"), mend=maybe(text("what to do"))),
        placement=maybe(
            many(text("a flag or a value"), "all flags, with a placement that fits; of loads like the last")
        ),
        mends=many(
            entry(
                "flags, or a release, with which it works, as tried",
                args=many(text("a flag or a value"), "to add"),
                first=switch("before the other flags"),
                drop=many(text("a flag"), "to leave out"),
                llama=maybe(text("the oldest newer release that does it, with the same flags")),
                left=number("bytes left on the fullest GPU then"),
                less=maybe(number("bytes that it takes less, where all should have fitted already")),
                where=maybe(text("the device that takes less")),
            ),
            "what mends it",
        ),
        buffers=many(row, "the log beside the prediction"),
        nodes=maybe(many(PAIR, "as logged, as predicted", 2)),
        agrees=maybe(switch("whether all buffers are as predicted")),
        refused=maybe(text("the kind of refusal that is predicted")),
        notes=NOTES,
    )
    return entry("a log of llama.cpp, explained", loads=many(load, "every load of a model"))


def verification() -> Schema:
    """``memplan verify --json``."""
    mib: Schema = {"type": "number", "description": "MiB, as llama.cpp prints them"}
    row = entry(
        "one figure",
        name=text("the device"),
        part=text("of what", "model", "context", "compute"),
        measured_mib=mib,
        predicted_mib=mib,
        agrees=switch("equal, as far as its digits tell"),
    )
    taken = entry(
        "one device",
        device=text("CUDA0"),
        pool=number("of CUDA's pools, by rule"),
        workspace=number("of cuBLAS, by rule"),
        rest=number("about what else there is: the code of kernels"),
    )
    return entry(
        "llama.cpp's own numbers beside memplan's",
        program=text("what was run"),
        build=maybe(text("its build")),
        command=many(text("a word"), "the whole command line"),
        llama=text("the release that was followed"),
        exact=switch("whether that release and these flags are modelled"),
        figures=many(row, "each figure that it gave"),
        unaccounted=many(
            taken, "what llama.cpp's own breakdown calls unaccounted once slots are full, where a rule has it"
        ),
        refused=entry(
            "whether llama.cpp starts with it",
            measured=maybe(text("why the program gave no figures")),
            predicted=maybe(text("the kind of the refusal that memplan predicts")),
        ),
        agrees=switch("all of them"),
        notes=NOTES,
    )


def plan() -> Schema:
    """``memplan plan --json``: flags that fit, or what would."""
    args = many(text("a flag or a value"), "flags to add to those given")
    return {
        "description": "flags with which a model fits, or the nearest changes with which it would",
        "type": "object",
        "properties": {
            "args": maybe(args),
            "exact": switch("whether all figures are llama.cpp's own; notes say why not"),
            "estimate": estimate(),
            "nearest": {"type": "array"},
            "notes": NOTES,
        },
        "required": ["args", "exact"],
    }


def rig() -> Schema:
    """A rig file, for ``--rig``; TOML files have the same fields."""
    from memplan.rig_file import RigEntry

    return {"description": "the GPUs and the host's memory, for --rig", **RigEntry.model_json_schema()}


_ALL = (
    estimate, sweep, largest, explanation, run_time, slots, paths, comparison, plan, devices, cards,
    diagnosis, verification, rig,
)  # fmt: skip
SCHEMAS = {make.__name__: make for make in _ALL}


def written(name: str) -> str:
    """A schema as its file holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"memplan {name}", **SCHEMAS[name]()}
    return json.dumps(schema, indent=2) + "\n"


def main() -> int:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / f"{name}.schema.json").write_text(written(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
