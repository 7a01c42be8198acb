from __future__ import annotations

import pytest

from memplan.errors import FlagError
from memplan.llama.command_line import CommandLine, read_line

FLAGS = ("-m", "m.gguf", "-c", "4096")
LINE = "llama-server -m m.gguf -c 4096"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "sudo",
        "sudo -u llama -E",
        "env",
        "nohup",
        "time",
        "taskset -c 0-7",
        "numactl --interleave=all --cpunodebind 0",
        "nice -n 10 ionice -c 3",
        "systemd-run --user --scope -p MemoryMax=64G",
        "docker exec -it box",
        "docker run --rm --gpus all -p 8080:8080 -v /m:/m --entrypoint llama-server img",
    ],
)
def test_what_stands_before_the_program(before: str) -> None:
    line = LINE.split()[1:] if "--entrypoint" in before else LINE.split()
    found = read_line([*before.split(), *line])
    assert (found.words, found.app, dict(found.environment)) == (FLAGS, "server", {})


def test_options_and_models_stay_where_they_are() -> None:
    words = ["model", "--gpu", "sudo llama-server", "X=1", "time", "./llama-cli", "-c", "1", "--gpu=a b", "--json"]
    found = read_line(words, ["--gpu"])
    assert found == CommandLine(
        ("model", "--gpu", "sudo llama-server", "-c", "1", "--gpu=a b", "--json"), "cli", {"X": "1"}
    )


@pytest.mark.parametrize(
    "text",
    [
        f"CUDA_VISIBLE_DEVICES=1,0 {LINE}",
        f"export CUDA_VISIBLE_DEVICES=1,0\ncd /opt && ./{LINE} 2>&1 | tee log.txt",
        f"set CUDA_VISIBLE_DEVICES=1,0 && {LINE.replace('server', 'server.exe')}",
        f'$env:CUDA_VISIBLE_DEVICES="1,0"; {LINE}',
        f"bash -c 'CUDA_VISIBLE_DEVICES=1,0 exec {LINE}'",
        f"docker run -e CUDA_VISIBLE_DEVICES=1,0 ghcr.io/ggml-org/llama.cpp:server-cuda {LINE[13:]}",
        f"docker run -e CUDA_VISIBLE_DEVICES=1,0 ghcr.io/ggml-org/llama.cpp:full-cuda --server {LINE[13:]}",
        f"podman run --env=CUDA_VISIBLE_DEVICES=1,0 -it llama.cpp:server {LINE[13:]}",
        f"tmux new-session -d 'CUDA_VISIBLE_DEVICES=1,0 {LINE}'",
        f'ssh box "CUDA_VISIBLE_DEVICES=1,0 {LINE}"',
    ],
)
def test_a_text_holds_the_line(text: str) -> None:
    assert read_line([text]) == CommandLine(FLAGS, "server", {"CUDA_VISIBLE_DEVICES": "1,0"})


def test_windows_starts_it() -> None:
    found = read_line([r'start "the server" /B C:\llama\llama-server.exe -m C:\m.gguf -c 4096'])
    assert found == CommandLine(("-m", r"C:\m.gguf", "-c", "4096"), "server", {})
    found = read_line(["start", "title", "cmd", "/k", r"C:\llama\llama-server.exe -m m.gguf -c 4096"])
    assert found.words == FLAGS


def test_a_container_counts_the_gpus_that_it_gets_in_the_machines_order() -> None:
    line = "docker run --gpus '\"device=2,0\"' ghcr.io/ggml-org/llama.cpp:light-cuda -c 1"
    assert read_line([line]) == CommandLine(("-c", "1"), "cli", {"CUDA_VISIBLE_DEVICES": "0,2"})
    line = line.replace("'\"device=2,0\"'", "2")
    assert read_line([line]).environment == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_flags_alone_and_names_with_spaces() -> None:
    assert read_line(["-c 4096\n-np 1"]).words == ("-c", "4096", "-np", "1")
    for name in ("/my models/m x.gguf", "/my models/bob's llama-server.gguf", "my model"):
        assert read_line([name]) == CommandLine((name,))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sudo", "vllm", "serve", "x"], "'sudo': what follows starts neither llama-server nor llama-cli"),
        (["vllm", "serve", "x"], "'vllm' has flags of its own"),
        (["ollama", "run", "x"], "'ollama' has flags of its own"),
        (["docker", "run", "ubuntu", "-c", "1"], "'docker': what follows starts neither"),
        (["docker", "compose", "up"], "'docker': what follows starts neither"),
        (["docker", "run", "-e"], "'docker': what follows starts neither"),
        (["bash", "-c"], "'bash': what follows starts neither"),
        (["time"], "'time': what follows starts neither"),
        (["llama-server", "llama-cli"], "two programs of llama.cpp in one line"),
        ([f"{LINE}\n{LINE}"], "the text starts llama.cpp 2 times, in lines 1 and 2"),
        (["llama-server -m 'x"], "a quote without its end"),
        (["llama-server", "\u2013c", "4096"], "begins with a dash of print"),
        (["llama-server", "-fa", "-c", "1"], "-fa '-c': -fa needs a value, on, off or auto"),
    ],
)
def test_what_is_no_line_of_llama_cpps(words: list[str], said: str) -> None:
    with pytest.raises(FlagError) as caught:
        read_line(words)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["docker", "run", "x"] * 2000,
        ["docker", "run", "--entrypoint", "docker", "llama"] * 60,
        ["docker", "run", "--gpus", "9" * 6000, "llama.cpp", "-c", "1"],
        ["sudo"] * 3000,
        ["a\n" * 30000],
        ["llama-server " + "$(" * 15000],
    ],
)
def test_lines_that_nobody_writes_end_soon(words: list[str]) -> None:
    try:
        found = read_line(words)
    except FlagError as error:
        assert len(str(error)) < 200
    else:
        assert len(found.environment) <= 1
