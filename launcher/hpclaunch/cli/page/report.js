"use strict";
// Zoom, and the theme: all else works without this. The drawings are nested SVGs, of which the inner
// one is as wide as the whole time of the job: to zoom is to make it wider and to move it.
(() => {
  const MOST = 400; // times as large as all of it
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 172800, 604800, 1209600, 2419200];
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const body = document.body.dataset;
  const begin = Number(body.begin), length = Number(body.end) - begin, offset = Number(body.offset);
  const zooms = [...document.querySelectorAll("svg.zoom")];
  const range = document.getElementById("range");
  let scale = 1, left = 0; // how many times as large, and which share of the whole is at the left

  const two = (number) => String(number).padStart(2, "0");

  function clock(at, step) {
    const date = new Date(1000 * (at + offset));
    if (step >= 86400) return `${MONTHS[date.getUTCMonth()]} ${two(date.getUTCDate())}`;
    const minutes = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
    return step >= 60 ? minutes : `${minutes}:${two(date.getUTCSeconds())}`;
  }

  function ticks(width) {
    const from = begin + left * length, shown = length / scale;
    const most = Math.max(2, Math.floor(width / 90));
    const step = STEPS.find((each) => shown / each <= most) || STEPS[STEPS.length - 1];
    const found = [];
    for (let at = Math.ceil((from + offset) / step) * step - offset; at <= from + shown; at += step) {
      const place = width * (at - from) / shown; // a label at the edge would be cut off
      const label = 32 < place && place < width - 32 ? clock(at, step) : "";
      found.push([`${100 * (at - begin) / length}%`, label]);
    }
    return found;
  }

  function make(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  }

  function draw() {
    scale = Math.min(MOST, Math.max(1, scale));
    left = Math.min(1 - 1 / scale, Math.max(0, left));
    for (const zoom of zooms) {
      zoom.setAttribute("x", `${-100 * left * scale}%`);
      zoom.setAttribute("width", `${100 * scale}%`);
    }
    for (const group of document.querySelectorAll(".ticks, .grid")) {
      const found = ticks(group.closest(".plot").getBoundingClientRect().width);
      const made = group.matches(".ticks")
        ? found.map(([x, text]) => make("text", { x, y: 14 }, text))
        : found.map(([x]) => make("line", { x1: x, x2: x, y1: 0, y2: "100%" }));
      group.replaceChildren(...made);
    }
    const from = begin + left * length;
    range.textContent = `${clock(from, 1)} to ${clock(from + length / scale, 1)}`;
  }

  function zoom(by, at = 0.5) { // `at`: the share of the drawing that stays where it is
    const place = left + at / scale;
    scale = Math.min(MOST, Math.max(1, scale * by));
    left = place - at / scale;
    draw();
  }

  function move(by) {
    left += by / scale;
    draw();
  }

  const ACTIONS = {
    in: () => zoom(1.5), out: () => zoom(1 / 1.5), left: () => move(-0.2), right: () => move(0.2),
    reset: () => { scale = 1; left = 0; draw(); },
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "reset" };

  const tools = document.getElementById("tools");
  tools.hidden = false;
  for (const button of tools.querySelectorAll("button")) {
    button.addEventListener("click", ACTIONS[button.dataset.do]);
  }
  document.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    const scrolls = event.target.closest("pre, .scroll") && event.key.startsWith("Arrow");
    if (!action || scrolls || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    ACTIONS[action]();
  });

  for (const plot of document.querySelectorAll(".plot")) {
    plot.addEventListener("wheel", (event) => {
      if (event.ctrlKey || (scale === 1 && event.deltaY > 0)) return; // the page scrolls on
      event.preventDefault();
      const box = plot.getBoundingClientRect();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / box.width);
      else zoom(Math.exp(-event.deltaY / 300), (event.clientX - box.left) / box.width);
    }, { passive: false });
    plot.addEventListener("pointerdown", (event) => {
      if (event.button || event.target.closest("a")) return;
      const width = plot.getBoundingClientRect().width;
      let last = event.clientX;
      const around = plot.closest(".drawing");
      const drag = (moved) => { move((last - moved.clientX) / width); last = moved.clientX; };
      const end = () => {
        plot.removeEventListener("pointermove", drag);
        if (around) around.classList.remove("dragged");
      };
      plot.setPointerCapture(event.pointerId);
      if (around) around.classList.add("dragged");
      plot.addEventListener("pointermove", drag);
      plot.addEventListener("pointerup", end, { once: true });
      plot.addEventListener("pointercancel", end, { once: true });
    });
  }

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme
      || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });

  // What is folded away is printed all the same.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
  addEventListener("resize", draw);
  draw();
})();
