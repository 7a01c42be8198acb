"""The page in a real browser: a newcomer's three jobs by clicks, figures equal to the commands', no network.

Skipped where Chromium, Playwright or Pyodide's core is not there: apt-get install chromium, pip install
'.[browser]', and npm, which fetches the core once.
"""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from memplan.cli import main
from memplan.errors import MemplanError
from memplan.page.core import pyodide_core
from memplan.page.folder import page_files, write_page

playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install '.[browser]'")

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000
"""Milliseconds that Python may take to start in the browser, on a machine that does other things too."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Opened:
    """The page, where it was served from, all addresses that it asked for, and what the browser complained about."""

    page: Any
    server: ThreadingHTTPServer
    folder: Path
    asked: list[str]
    complaints: list[str]

    @property
    def address(self) -> str:
        return f"http://localhost:{self.server.server_port}/"


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The folder that ``memplan page -o`` writes, on a plain web server, in a browser."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    try:
        core = pyodide_core()
    except MemplanError as error:
        pytest.skip(str(error))
    folder = str(tmp_path_factory.mktemp("page"))
    write_page(folder, page_files(core))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        playwright.expect.set_options(timeout=PATIENCE)
        found = Opened(page, server, Path(folder), [], [])
        context.on("request", lambda request: found.asked.append(request.url))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("console", lambda said: found.complaints.extend([said.text] if said.type == "error" else []))
        page.goto(found.address)
        answered(page)
        yield found
        browser.close()
    server.server_close()


@pytest.fixture(autouse=True)
def fresh(opened: Opened) -> Any:
    """The page with a form as a link fills it."""
    opened.page.goto(f"{opened.address}#model=llama-3.2-3b&c=4096&np=1&gpu=RTX+4090")
    playwright.expect(opened.page.locator("#model")).to_have_value("llama-3.2-3b")
    answered(opened.page)
    return opened.page


def answered(page: Any) -> None:
    """Wait until the estimate that was asked for is there."""
    page.wait_for_selector("body[data-ready]:not([data-asking*=typing], [data-asking*=line], [data-asking*=estimate])")


def searched(page: Any) -> None:
    """Wait until all is there."""
    page.wait_for_selector('body[data-ready][data-asking=""]')


def change(page: Any, **values: str) -> None:
    """Fill fields as somebody would, and wait for the answer."""
    for name, value in values.items():
        field = page.locator(f"#{name.replace('_', '-')}")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    answered(page)


def cards(page: Any, count: str, name: str) -> None:
    """One kind of card."""
    while page.locator("#cards .card").count() > 1:
        page.locator("#cards .card .remove").last.click()
    if not page.locator("#cards .card").count():
        page.get_by_role("button", name="Add another kind of card").click()
    page.get_by_label("How many of this card").fill(count)
    page.get_by_label("Card", exact=True).fill(name)
    answered(page)


def shown(page: Any) -> dict[str, dict[str, int]]:
    """The bytes in the table of figures, by device and part."""
    rows = page.locator("#figures tbody tr").all()
    return {
        row.get_attribute("data-device"): {
            cell.get_attribute("data-part"): int(cell.get_attribute("data-bytes"))
            for cell in row.locator("td[data-part][data-bytes]").all()
        }
        for row in rows
    }


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def assert_same(page: Any, expected: Any) -> None:
    """The figures on the page are those of an estimate's JSON."""
    found = shown(page)
    assert list(found) == [*(device["name"] for device in expected["devices"]), "host"]
    for place in (*expected["devices"], {"name": "host", **expected["host"]}):
        assert found[place["name"]] == {part: place[part] for part in found[place["name"]]}
        assert {"model", "context", "compute"} <= found[place["name"]].keys()


def test_what_fits_on_two_rtx_3090(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    page = opened.page
    page.get_by_label("Family and model").select_option("deepseek-v4-flash")
    cards(page, "2", "RTX 3090")
    change(page, context="64k", slots="1", experts="34")
    searched(page)
    line = ("deepseek-v4-flash", "--gpu", "2*RTX 3090", "-np", "1", "-ncmoe", "34")
    assert_same(page, printed(capsys, "estimate", *line, "-c", "65536"))
    assert page.locator("#verdict").inner_text().startswith("✓fits: ")
    assert page.locator("#exact").inner_text() == "Exact: v0.5.0's own numbers, to the byte."
    largest = printed(capsys, "sweep", *line, "--max", "ctx")["found"][0]["value"]
    assert page.locator("#largest strong").inner_text() == f"{largest:,}"
    assert page.locator("#chart figure").count() == 2
    assert "fits to " in page.locator("#chart").get_attribute("aria-label")
    assert "CUDA1  RTX 3090: fits to " in page.locator("#chart svg").last.get_attribute("aria-label")
    page.get_by_role("button", name="Use it").click()
    answered(page)
    assert page.get_by_label("Context, tokens").input_value() == str(largest)
    assert f"-c {largest}" in page.get_by_label("memplan's command line").inner_text()


def test_where_nothing_fits_a_plan_does(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    page = opened.page
    page.get_by_label("Family and model").select_option("deepseek-v4-flash")
    cards(page, "2", "RTX 3090")
    change(page, context="65536")
    assert page.locator("#verdict").inner_text().startswith("✗does not fit: CUDA0 is ")
    searched(page)
    plan = printed(capsys, "plan", "deepseek-v4-flash", "--gpu", "2*RTX 3090", "-np", "1", "-c", "65536")
    said = page.locator("#plan-body").inner_text()
    assert plan["args"][-1] in said and "override-tensor = " in said and "--fit-target" in said
    page.get_by_role("button", name="Use these flags").click()
    answered(page)
    assert_same(page, plan["estimate"])


def test_a_pasted_line(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    page = opened.page
    cards(page, "1", "RTX 4090")
    page.locator("#paste").fill(
        "CUDA_VISIBLE_DEVICES=0 ./llama-server -m models/gpt-oss-20b-mxfp4.gguf \\\n"
        "  --ctx-size 131072 --parallel 2 -ctk q8_0 -ctv q8_0 -fa on --swa-full --api-key hush"
    )
    page.wait_for_selector("#paste-said:not(:empty)")
    answered(page)
    flags = ("-c", "131072", "-np", "2", "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on", "--swa-full")
    assert_same(page, printed(capsys, "estimate", "gpt-oss-20b", "--gpu", "RTX 4090", *flags))
    assert page.get_by_label("Slots").input_value() == "2" and page.locator("#more").input_value() == "--swa-full"
    said = page.locator("#paste-said").inner_text()
    assert "taken for the built-in gpt-oss-20b:mxfp4" in said and "--api-key left out" in said
    assert "hush" not in page.url and "hush" not in page.get_by_label("llama-server's command line").inner_text()
    page.locator("#paste").fill("llama-server --bogus")
    page.wait_for_selector("#paste-error:not(:empty)")
    assert "unknown flag '--bogus'" in page.locator("#paste-error").inner_text()
    page.locator("#paste").fill("")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file as long as the model, of which the header alone is there."""
    path = tmp_path_factory.mktemp("file") / "some-model.gguf"
    assert main(["header", "llama-3.2-3b:q8_0", "-o", str(path), "--sparse"]) == 0
    assert path.stat().st_size > 3 << 30
    return path


def test_a_chosen_file_is_read_by_slices(opened: Opened, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = opened.page
    page.get_by_role("radio", name="GGUF file").check()
    page.locator("#file").set_input_files(file)
    change(page, context="32768")
    assert_same(page, printed(capsys, "estimate", str(file), "--gpu", "RTX 4090", "-c", "32768", "-np", "1"))
    assert "some-model.gguf: 3.2 B parameters" in page.locator("#model-line").inner_text()
    assert "-m some-model.gguf" in page.get_by_label("llama-server's command line").inner_text()
    assert parse_qs(page.url.partition("#")[2])["file"] == ["some-model.gguf"]


def test_a_dropped_header(opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, path = opened.page, tmp_path / "small.gguf"
    assert main(["header", "qwen3-8b", "-o", str(path)]) == 0
    drop = """(target, bytes) => {
        const given = new DataTransfer();
        given.items.add(new File([new Uint8Array(bytes)], "small.gguf"));
        for (const kind of ["dragenter", "dragover", "drop"])
            target.dispatchEvent(new DragEvent(kind, { dataTransfer: given, bubbles: true, cancelable: true }));
    }"""
    page.locator("body").evaluate(drop, list(path.read_bytes()))
    answered(page)
    assert page.locator("#drop").is_hidden()
    assert_same(page, printed(capsys, "estimate", str(path), "--gpu", "RTX 4090", "-c", "4096", "-np", "1"))
    page.locator("body").evaluate(drop, [71, 71, 85, 70, 3])
    answered(page)
    assert page.locator("#file-error").inner_text().startswith("small.gguf: the version takes 4 bytes")


def test_an_address_is_read_if_its_server_lets_pages(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    page = opened.page
    small = opened.folder / "small.gguf"
    assert main(["header", "qwen3-8b:q8_0", "-o", str(small)]) == 0
    page.get_by_role("radio", name="Address").check()
    page.locator("#address").fill(f"{opened.address}small.gguf")
    page.get_by_role("button", name="Read").click()
    playwright.expect(page.locator("#model-line")).to_contain_text("small.gguf: 8.2 B parameters")
    assert_same(page, printed(capsys, "estimate", str(small), "--gpu", "RTX 4090", "-c", "4096", "-np", "1"))
    other = opened.address.replace("localhost", "127.0.0.1")
    page.locator("#address").fill(f"{other}small.gguf")
    page.get_by_role("button", name="Read").click()
    playwright.expect(page.locator("#address-error")).to_contain_text("does not let pages read it (CORS)")
    assert [address for address in opened.asked if not address.startswith(opened.address)] == [f"{other}small.gguf"]
    opened.asked.clear()
    page.locator("#address").fill("hf:owner")
    page.get_by_role("button", name="Read").click()
    playwright.expect(page.locator("#address-error")).to_contain_text("owner or repository is missing")


def test_what_is_refused_is_said_beside_its_field(opened: Opened) -> None:
    page = opened.page
    change(page, cache_v="q8_0", flash="off")
    assert "quantized V cache requires flash_attn" in page.locator("#flash-error").inner_text()
    assert page.locator("#flash").get_attribute("aria-invalid") == "true"
    assert page.locator("#verdict").inner_text().startswith("✗llama.cpp refuses to start")
    change(page, cache_v="f16", flash="auto", ubatch="many")
    assert "-ub 'many'" in page.locator("#ubatch-error").inner_text()
    assert not page.locator("#flash-error").inner_text() and not page.locator("#figures tr").count()
    change(page, ubatch="")
    cards(page, "1", "RTX 3091")
    assert "did you mean" in page.locator("#cards-error").inner_text()
    cards(page, "1", "RTX 3090")
    change(page, host="0.5")
    assert "--host-mib: 512 MiB is too small to be meant" in page.locator("#host-error").inner_text()
    change(page, host="")
    assert page.locator(".error:not(:empty)").count() == 0 and page.locator("[aria-invalid]").count() == 0
    assert page.locator("#bars svg").bounding_box()["width"] > 300


def test_what_is_not_exact_says_why(opened: Opened) -> None:
    """Also a graph of thousands of nodes, which Python must free one by one: a browser's stack is small."""
    page = opened.page
    page.get_by_label("Family and model").select_option("qwen3-235b-a22b")
    cards(page, "1", "M3 Ultra")
    assert "not exact: Metal: its rules are read" in page.locator("#exact").inner_text()
    assert list(shown(page)) == ["MTL0", "host"]


def test_a_link_holds_the_whole_question(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Family and model").select_option("glm-4.5-air")
    cards(page, "3", "RTX 5090")
    change(page, context="40960", slots="3", experts="5", host="96", more="-kvu")
    before, link = shown(page), page.url
    change(page, context="8192", slots="", experts="", host="", more="")
    page.get_by_label("Family and model").select_option("qwen3-8b")
    answered(page)
    assert shown(page) != before
    page.goto(link)
    playwright.expect(page.get_by_label("Slots")).to_have_value("3")
    answered(page)
    assert shown(page) == before and page.get_by_label("Host memory, GiB").input_value() == "96"


def test_by_keyboard_alone(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Slots").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("2")
    page.keyboard.press("Tab")
    answered(page)
    assert "2 slots" in page.locator("#figures caption").inner_text()
    page.locator("#why summary").focus()
    page.keyboard.press("Enter")
    searched(page)
    assert page.locator("#why-body table").count() >= 2
    unnamed = """() => [...document.querySelectorAll("input, select, textarea, button")].filter((field) =>
        !field.closest("template") && !(field.labels?.length || field.ariaLabel || field.textContent.trim())).length"""
    assert page.evaluate(unnamed) == 0
    assert page.locator("#verdict").get_attribute("aria-live") == "polite"
    page.keyboard.press("Enter")


def test_a_search_can_be_stopped(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Family and model").select_option("deepseek-v3.2")
    page.wait_for_selector("#busy[data-state=running]")
    page.locator("#stop").evaluate("button => button.click()")
    assert page.locator("#busy-text").inner_text() == "Stopped."
    page.get_by_label("Family and model").select_option("qwen3-8b")
    searched(page)
    assert page.locator("#largest strong").count() == 1


def test_pictures_are_saved(opened: Opened) -> None:
    page = opened.page
    for button, start in (("Picture as SVG", b"<svg "), ("Picture as PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=button).click()
        data = Path(saved.value.path()).read_bytes()
        assert data.startswith(start) and b"var(--" not in data


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 844})
    answered(opened.page)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_it_opens_again_without_a_network(opened: Opened) -> None:
    """The last of all: from here on no server is there."""
    page = opened.page
    page.evaluate("() => navigator.serviceWorker.ready.then(() => true)")
    before = shown(page)
    opened.server.shutdown()
    opened.server.socket.close()
    page.reload()
    answered(page)
    assert shown(page) == before
    assert [address for address in opened.asked if not address.startswith((opened.address, "blob:"))] == []
    expected = ("ERR_CONNECTION_REFUSED", "ERR_FAILED", "CORS")
    assert [said for said in opened.complaints if not any(word in said for word in expected)] == []
