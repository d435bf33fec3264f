"""hpclaunch report --html: what a browser shows of it, and what hostile output does there."""

from __future__ import annotations

import base64
import errno
import os
import stat
import time

import browser
import pytest
from launching import hpclaunch, script
from long_jobs import BEGIN, a_launch, pasts_of, write_facts

from hpclaunch.cli.report_page import html
from hpclaunch.core.hangs.tracebacks import HangStacks
from hpclaunch.observe.job_page import job_page
from hpclaunch.observe.job_report import report
from hpclaunch.system.logs import fact_files, history_files
from hpclaunch.system.logs.log_directory import history_of
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

HOSTILE = "</script></style><img src=x onerror=\"document.title='owned'\"><script>alert(1)</script>"
LINE = "echarts.getInstanceByDom(document.getElementById('time-line-drawing'))"
DRAWN = "[...document.querySelectorAll('.drawing')]"
DATA = "JSON.parse(document.getElementById('data').textContent)"
PLACE = """((row, x) => { // of a row of the time line, and a time in units of the axis
  const chart = echarts.getInstanceByDom(document.getElementById("time-line-drawing"));
  const { min, max } = chart.getOption().xAxis[0];
  const [left, top] = chart.convertToPixel("grid", [min + x / 20000 * (max - min), row]);
  const box = chart.getDom().getBoundingClientRect();
  return { x: box.x + left, y: box.y + top };
})"""
SHOWN = "(({start, end}) => [start, end])(CHART.getOption().dataZoom[0])"  # percent
TEXT = "document.body.innerText"
PAPER = "getComputedStyle(document.documentElement).backgroundColor"


def local(at, form):
    return time.strftime(form, time.gmtime(at))


def a_page(launch, histories, stacks=(), logs=("hpclaunch-logs/71.0",)):
    launches = [launch]
    seen = (pasts_of(launch), histories, stacks)
    return job_page(report(launches), launches, *seen, local, logs=logs, version="1.2.3")


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    browser.require()
    with browser.tab(tmp_path_factory.mktemp("browser")) as tab:
        tab.resize(1280, 900)
        yield tab


def opened(tab, tmp_path, page, *, scripts=True):
    file = tmp_path / "page.html"
    file.write_text(html(page), errors="replace")
    tab.errors.clear()
    tab.requests.clear()
    tab.prefer("light")
    tab.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
    tab.open(file)
    return file


def test_what_is_shown_and_nothing_is_loaded(tab, tmp_path):
    file = opened(tab, tmp_path, a_page(*a_launch(gpus=True)))
    text = tab.value(TEXT)
    for said in ("71.0", "done", "RuntimeError: CUDA error", "Hottest GPU", "steps done twice"):
        assert said in text
    assert "Traceback" not in text  # folded away
    assert tab.requests == [file.as_uri()]
    assert tab.errors == []


def test_without_scripts_only_the_drawings_are_missing(tab, tmp_path):
    opened(tab, tmp_path, a_page(*a_launch()), scripts=False)
    tab.ask("Emulation.setScriptExecutionDisabled", value=False)
    text = tab.value(TEXT)
    assert "RuntimeError: CUDA error" in text
    assert "The drawings need JavaScript" in text
    assert not tab.value("document.getElementById('tools').checkVisibility()")
    assert tab.value("document.querySelectorAll('tfoot .number').length") == 2
    assert tab.errors == []


def test_every_drawing_is_drawn(tab, tmp_path):
    opened(tab, tmp_path, a_page(*a_launch(gpus=True)))
    assert tab.value(f"{DRAWN}.length") == 1 + 7 + 1  # the time line, seven charts, the ledger
    assert tab.value(f"{DRAWN}.every(each => each.querySelectorAll('svg path').length > 0)")
    rows = tab.value(
        "[...document.querySelectorAll('#time-line-drawing text')].map(e => e.textContent)"
    )
    assert {"rounds", "job", "events", "checkpoints", "rank 0", "rank 3", "n3"} <= set(rows)


def test_a_bar_says_what_it_is_and_a_mark_leads_to_its_failure(tab, tmp_path):
    opened(tab, tmp_path, a_page(*a_launch()))
    tab.ask("Input.dispatchMouseEvent", type="mouseMoved", **tab.value(f"{PLACE}(1, 5000)"))
    tab.until("document.querySelector('.drawing > div + div')?.innerText.includes('job: training')")
    fault = f"{DATA}.marks.find(mark => mark.kind === 'fault').x"
    place = tab.value(f"{PLACE}(2, {fault})")
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        tab.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    tab.until("location.hash === '#end-0'")
    assert tab.errors == []


def test_keys_the_wheel_and_buttons_zoom(tab, tmp_path):
    """All drawings together."""
    opened(tab, tmp_path, a_page(*a_launch()))
    charts = f"{DRAWN}.slice(0, -1).map(echarts.getInstanceByDom)"

    def shown():
        spans = tab.value(f"{charts}.map(CHART => {SHOWN})")
        assert all(span == pytest.approx(spans[0]) for span in spans)
        return spans[0]

    assert shown() == [0, 100]
    for _ in range(3):
        tab.press("+")
    start, end = shown()
    assert end - start == pytest.approx(100 / 1.5**3)
    tab.press("ArrowRight")
    assert shown()[0] == pytest.approx(start + 0.2 * (end - start))
    assert " to " in tab.value("document.getElementById('range').textContent")
    tab.press("0")
    assert shown() == [0, 100]
    box = tab.value(f"(({{x, y}}) => ({{x, y}}))({LINE}.getDom().getBoundingClientRect())")
    place = {"x": box["x"] + 600, "y": box["y"] + 40}
    wheel = {"type": "mouseWheel", "deltaX": 0, "deltaY": -300}
    tab.ask("Input.dispatchMouseEvent", **wheel, **place, modifiers=2)  # Ctrl
    tab.until(f"(CHART => {SHOWN}[1] < 100)({LINE})")
    tab.value("document.querySelector('[data-do=reset]').click()")
    assert shown() == [0, 100]
    assert tab.errors == []


def test_dark_and_light(tab, tmp_path):
    opened(tab, tmp_path, a_page(*a_launch()))
    light = tab.value(PAPER)
    tab.prefer("dark")
    assert tab.value(PAPER) != light
    tab.value("document.getElementById('theme').click()")
    assert tab.value(PAPER) == light
    tab.value("document.getElementById('theme').click()")
    assert tab.value(PAPER) != light
    tab.ask("Emulation.setEmulatedMedia", media="print")
    assert tab.value(PAPER) == light
    tab.ask("Emulation.setEmulatedMedia", media="")


def test_it_can_be_printed(tab, tmp_path):
    """Drawings are no wider than the paper: otherwise the browser would make all smaller."""
    opened(tab, tmp_path, a_page(*a_launch()))
    tab.value("dispatchEvent(new Event('beforeprint'))")
    tab.ask("Emulation.setEmulatedMedia", media="print")
    tab.resize(700, 900)
    widths = f"{DRAWN}.map(each => each.querySelector('svg').getBoundingClientRect().width)"
    assert all(200 < width <= 700 for width in tab.value(widths))
    tab.resize(1280, 900)
    tab.ask("Emulation.setEmulatedMedia", media="")
    pdf = base64.b64decode(tab.ask("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")


@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_is_wider_than_the_window(tab, tmp_path, width):
    tab.resize(width, 900)
    opened(tab, tmp_path, a_page(*a_launch(nodes=40, host="a-rather-long-name-of-a-node-{}")))
    assert tab.value("document.documentElement.scrollWidth") <= width
    tab.resize(1280, 900)


def test_hostile_text_is_only_text(tab, tmp_path):
    launch, histories = a_launch(
        HOSTILE, host=f"n{{}}{HOSTILE}", tail=f"ValueError: {HOSTILE}\x1b[2J"
    )
    stacks = [HangStacks(0, BEGIN, HOSTILE, ((HOSTILE, HOSTILE),))]
    page = a_page(launch, histories, stacks, logs=(HOSTILE,))
    opened(tab, tmp_path, page)
    assert tab.value("document.images.length") == 0
    assert tab.value("document.scripts.length") == 3  # ours, that of the library, the data
    assert "owned" not in tab.value("document.title").replace(HOSTILE, "")
    assert HOSTILE in tab.value(TEXT)
    assert tab.errors == []
    assert "\x1b" not in html(page)


def test_512_ranks_and_10000_events_are_less_than_a_megabyte():
    """The events are failures, checkpoints and rounds."""
    launch, histories = a_launch(nodes=64, per_node=8, rounds=100, moments=100, gpus=True)
    written = html(a_page(launch, histories))
    assert len(written.encode()) < 1_000_000
    assert "520 GPUs" in written


def test_a_log_directory(tmp_path):
    """The file of a lost node is incomplete."""
    launch, histories = a_launch()
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o700)
    write_facts(logs, launch)
    for history in histories:
        lines = [history_files.title(history.launch, history.index, history.host)]
        lines += map(history_files.line, history.moments)
        (logs / history_of(str(history.index), BEGIN)).write_text("".join(lines) + '{"at":1')
    done = hpclaunch("report", "logs", "--html", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o600
    shown = (tmp_path / "page.html").read_text()
    assert "<dd>6 workers</dd>" in shown
    assert '"rank 3"' in shown
    assert "default-src 'none'" in shown


def test_the_facts_are_read_once(in_process, tmp_path, monkeypatch):
    read, seen = fact_files.read, []
    monkeypatch.setattr(fact_files, "read", lambda of: seen.append(of) or read(of))
    (tmp_path / "logs").mkdir()
    write_facts(tmp_path / "logs", a_launch()[0])
    done = in_process("report", "logs", "--html", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr, len(seen)) == (0, "", 1)


def test_a_directory_that_cannot_be_read_is_named(in_process, tmp_path, monkeypatch):
    def read(directory):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(history_files, "read", read)
    (tmp_path / "logs").mkdir()
    write_facts(tmp_path / "logs", a_launch()[0])
    done = in_process("report", "logs", "--html", "page.html", cwd=tmp_path)
    said = "hpclaunch: error: cannot read logs: Stale file handle\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not (tmp_path / "page.html").exists()


# Its second round continues until there is something to draw.
TRAINS = """
import glob, itertools, os, signal, sys, time, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
where = os.environ["HPCLAUNCH_CHECKPOINT"]
begin = torch.load(where)["step"] if where else 0

def is_noted():
    histories = glob.glob("hpclaunch-logs/*/history-0-*.jsonl")
    lines = (line for history in histories for line in open(history))
    noted = [line for line in lines if '"round":1,' in line and '"steps":0,' not in line]
    return len(noted) > 2 and any('"memory":0,' not in line for line in noted)

for step in itertools.count(begin):
    optimizer.step()
    time.sleep(0.05)
    if step == 30 and os.environ["RANK"] == "0":
        torch.save({"step": step}, "saved/new")
        os.rename("saved/new", "saved/step-30.pt")
    if step == 40 and not begin and os.environ["RANK"] == "1":
        while not os.path.exists("saved/step-30.pt"):
            time.sleep(0.05)
        print("<img src=x onerror=alert(1)>", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if begin and is_noted():
        break
"""
OFTEN = {"core.member.moments.YOUNGEST": 0.5, "agent.history_keeping.ASKS": 4.0}


def test_a_real_job_that_is_killed_and_restarted(tab, tmp_path):
    (tmp_path / "saved").mkdir()
    options = ("--nproc", 2, "--max-restarts", 1, "--checkpoint-dir", "saved")
    env = environment(PYTHONPATH=LIGHT_TORCH)
    done = hpclaunch(*options, script(tmp_path, TRAINS), cwd=tmp_path, env=env, timing=OFTEN)
    assert done.returncode == 0, done.stderr
    made = hpclaunch("report", "--html", "page.html", cwd=tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    tab.errors.clear()
    tab.open(tmp_path / "page.html")
    tab.value("for (const each of document.querySelectorAll('details')) each.open = true")
    text = tab.value(TEXT)
    for said in ("killed · rank 1 on", "SIGKILL", "2 rounds", "1 restart", "rank 1", "step 30"):
        assert said in text
    assert "<img src=x onerror=alert(1)>" in text
    assert "a checkpoint of step 30 is complete" in text
    assert "steps per second" in text.lower()
    assert tab.value("document.querySelectorAll('[id^=chart-] svg path').length") >= 4
    assert tab.errors == []


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--html", "nowhere/page.html"), "cannot write nowhere/page.html: No such file"),
        (("--html", "."), "cannot write .: Is a directory"),
        (("--html", "page.html", "--json"), "not allowed with argument"),
    ],
)
def test_mistakes(in_process, tmp_path, args, complaint):
    launch, _ = a_launch()
    write_facts(tmp_path, launch)
    done = in_process("report", ".", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
