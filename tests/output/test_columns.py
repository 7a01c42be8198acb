"""Tables and sentences keep to a width; figures are never broken."""

from __future__ import annotations

from rich.text import Text

from memplan.output.columns import column_lines
from memplan.output.words import to_text

ROWS = [["ffn_moe_swiglu_limited-2", "1,234.5", "in b9842 too, but not when it is fullest", "7"]]
TABLE = column_lines(["tensor", "MiB", "", "copies kept"], ROWS, [False, True, False, True], False)


def test_a_table_is_as_wide_as_it_is_where_no_width_is_given() -> None:
    head, rule, row = to_text(TABLE).splitlines()
    assert row.endswith("fullest            7") and len(row) == len(head) == len(rule)


def test_heads_are_broken_first_then_text_then_words() -> None:
    assert [line.split() for line in to_text(TABLE, width=80).splitlines()[:2]] == [
        ["tensor", "MiB", "copies"],
        ["kept"],
    ]
    for width in (80, 60, 50, 40):
        lines = to_text(TABLE, width=width).splitlines()
        assert max(map(len, lines)) <= width
        assert any("1,234.5" in line for line in lines)
        words = "".join(line[: line.find("1,234.5") if "1,234.5" in line else None].split()[0] for line in lines[3:4])
        assert ROWS[0][0].startswith(words)


def test_sentences_keep_their_styles() -> None:
    text = Text().append("bold", "bold").append(" and" * 30 + " the end")
    coloured = to_text([text], colour=True, width=40)
    assert coloured.startswith("\x1b[1mbold\x1b[0m and")
    lines = to_text([text], width=40).splitlines()
    assert max(map(len, lines)) <= 40 and lines[1].startswith("  and")
    assert " ".join(" ".join(lines).split()) == text.plain


def test_names_are_broken_behind_their_underscores() -> None:
    cells = [["FLASH_ATTN_EXT", "CUDA0"], ["dsv4_lid_kq_mask", "CPU"]]
    (table,) = column_lines(["op", "on"], cells, [False, False], True)
    said = [line.plain for line in table.lines(19)]
    assert said[2:] == ["FLASH_ATTN_   CUDA0", "EXT", "dsv4_lid_kq_  CPU", "mask"]
