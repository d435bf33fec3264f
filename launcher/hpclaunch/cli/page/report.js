"use strict";
// The theme, and the drawings, by ECharts. Everything else on the page works without scripts.
// Colours are variables of the style sheet, so that a change of theme, or paper, needs no redrawing.
(() => {
  const UNITS = 20000; // from the left to the right of every drawing
  const NARROWEST = 100 / 400; // percent of the time that can be shown
  const { begin, end, offset, rows, categories, bars, rounds, marks, charts, ledger } =
    JSON.parse(document.getElementById("data").textContent);
  const SYMBOLS = {
    fault: ["path://M-5 -5L5 5M-5 5L5 -5", 9, "--fault"],
    change: ["rect", 8, "--faint"],
    save: ["rect", [0.5, 8], "--save"],
    node: ["triangle", 9, "--fault"],
    straggler: ["diamond", 11, "--straggler"],
  };
  const NO_EMPHASIS = { disabled: true }; // ECharts cannot lighten a colour that is a variable
  const MIDNIGHT = 24 * 3600 * 1000;
  const narrow = document.body.clientWidth < 640;

  // ECharts writes times as UTC: with the offset, they are those of the cluster.
  const at = (x) => 1000 * (begin + offset + (x * (end - begin)) / UNITS);
  const day = end - begin > 20 * 3600 ? "{MM}-{dd} " : "";
  const clock = (time) => echarts.time.format(time, `${day}{HH}:{mm}:{ss}`, true);
  const colour = (category) => `var(--${category.replaceAll(" ", "-")})`;

  function text(written) { // workers have written some of it: it must not become HTML
    const node = document.createElement("span");
    node.textContent = written;
    return node;
  }

  const STYLE = { color: "var(--faint)", fontSize: narrow ? 9 : 11 };
  const TIP = {
    backgroundColor: "var(--card)", borderColor: "var(--rule)", confine: true,
    textStyle: { color: "var(--ink)", fontSize: 12 }, extraCssText: "white-space: pre-line",
    transitionDuration: 0,
  };
  const tick = (time) => echarts.time.format(
    time, time % MIDNIGHT === 0 ? "{MM}-{dd}" : time % 60000 === 0 ? "{HH}:{mm}" : "{HH}:{mm}:{ss}", true);
  const TIME = {
    type: "time", min: at(0), max: at(UNITS),
    axisLabel: { ...STYLE, hideOverlap: true, formatter: tick },
    axisLine: { show: false }, axisTick: { show: false },
    splitLine: { show: true, lineStyle: { color: "var(--rule)" } },
  };
  const ZOOM = {
    type: "inside", zoomOnMouseWheel: "ctrl", minSpan: NARROWEST, throttle: 30,
  };
  const { fontFamily } = getComputedStyle(document.body);
  const drawn = [];

  function draw(id, height, option) {
    const place = document.getElementById(id);
    place.style.height = `${height}px`;
    const chart = echarts.init(place, null, { renderer: "svg" });
    chart.setOption({ animation: false, useUTC: true, textStyle: { fontFamily }, ...option });
    drawn.push(chart);
    return chart;
  }

  function bar(height, fill) { // of [from, until, row, ...]
    return (params, api) => {
      const [left, y] = api.coord([api.value(0), api.value(2)]);
      const [right] = api.coord([api.value(1), api.value(2)]);
      const whole = { x: left, y: y - height / 2, width: Math.max(right - left, 0.5), height };
      const shape = echarts.graphic.clipRectByRect(whole, params.coordSys);
      return shape && { type: "rect", shape, style: fill(api, shape), emphasisDisabled: true };
    };
  }

  const ofCategory = (api) => ({ fill: colour(categories[api.value(3)]) });

  function drawTimeLine() {
    const pitch = rows.length > 28 ? 12 : 18, height = pitch * rows.length;
    const ofRound = (api, shape) => ({
      fill: "var(--paper)", stroke: "var(--faint)", textFill: "var(--ink)", fontSize: 11,
      text: shape.width > 30 ? String(rounds[api.value(3)].number) : "", textPosition: "inside",
    });
    const rect = { type: "custom", encode: { x: [0, 1], y: 2 }, cursor: "default" };
    return draw("time-line-drawing", height + 30, {
      grid: { left: narrow ? 86 : 136, right: 8, top: 4, height, show: true, borderWidth: 0,
        backgroundColor: "var(--card)" },
      xAxis: TIME,
      yAxis: { type: "category", data: rows, inverse: true, axisLine: { show: false },
        axisTick: { show: false },
        axisLabel: { ...STYLE, fontSize: Math.min(11, pitch - 2), interval: 0, width: narrow ? 80 : 126, overflow: "truncate" } },
      dataZoom: { ...ZOOM, filterMode: "weakFilter" }, // keep bars that are partly in view
      tooltip: TIP,
      series: [
        { ...rect, renderItem: bar(pitch - 2, ofRound),
          data: rounds.map((each, i) => [at(each.x), at(each.until), 0, i]),
          tooltip: { formatter: ({ dataIndex }) => text(rounds[dataIndex].text) } },
        { ...rect, renderItem: bar(pitch - 3, ofCategory),
          data: bars.map(([row, category, x, until]) => [at(x), at(until), row, category]),
          tooltip: { formatter: ({ value: [from, until, row, category] }) =>
            text(`${rows[row]}: ${categories[category]}\n${clock(from)} to ${clock(until)}`) } },
        { type: "scatter", emphasis: NO_EMPHASIS,
          data: marks.flatMap((mark) => mark.rows.flatMap((row) => symbols(mark, row))),
          tooltip: { formatter: ({ data: { mark, value } }) => text(`${clock(value[0])} ${mark.text}`) } },
      ],
    });
  }

  function symbols(mark, row) { // the symbol, with a halo behind it
    const [symbol, symbolSize, variable] = SYMBOLS[mark.kind];
    const halo = mark.kind === "save" ? [] : [["--paper", 5]];
    return [...halo, [variable, 2]].map(([name, borderWidth]) => ({
      value: [at(mark.x), row], mark, symbol, symbolSize,
      itemStyle: { color: "none", borderColor: `var(${name})`, borderWidth, opacity: 1 },
    }));
  }

  function drawCurves(chart, i) {
    const series = chart.drawn.map((curve) => ({
      type: "line", name: curve.name, showSymbol: curve.points.length < 2, symbol: "circle",
      data: curve.points.map(([x, value]) => [at(x), value]),
      ...(curve.is_area
        ? { stack: "all", areaStyle: { color: `var(--${curve.style})`, opacity: 1 }, lineStyle: { width: 0 } }
        : { lineStyle: { color: `var(--${curve.style})`, type: curve.style === "two" ? "dashed" : "solid" } }),
      itemStyle: { color: `var(--${curve.style})` }, emphasis: NO_EMPHASIS,
    }));
    draw(`chart-${i}`, 150, {
      grid: { left: 70, right: 8, top: 8, bottom: 24 },
      xAxis: { ...TIME, splitNumber: 4 },
      yAxis: { type: "value", min: 0, max: chart.top, splitNumber: chart.top ? 4 : 3,
        interval: chart.top ? chart.top / 4 : undefined,
        axisLabel: { ...STYLE, formatter: (value) => `${value}${chart.unit}` },
        splitLine: { lineStyle: { color: "var(--rule)" } } },
      dataZoom: { ...ZOOM, filterMode: "none" }, // draw curves up to points out of view
      tooltip: { ...TIP, trigger: "axis", axisPointer: { lineStyle: { color: "var(--faint)" } },
        formatter: (points) => text([clock(points[0].value[0]), ...points
          .filter((point) => point.value[1] !== null) // without the gaps of a curve
          .map((point) => `${point.seriesName} ${point.value[1]}${chart.unit}`)].join("\n")) },
      series,
    });
  }

  function drawLedger() {
    let left = 0;
    const data = ledger.map(({ part }, i) => [left, (left += part), 0, i]);
    draw("ledger-drawing", 34, {
      grid: { left: 0, right: 0, top: 0, bottom: 0 },
      xAxis: { type: "value", min: 0, max: left, show: false },
      yAxis: { type: "category", data: [""], show: false },
      tooltip: { ...TIP, formatter: ({ dataIndex }) => {
        const { category, spent, share } = ledger[dataIndex];
        return text(`${category}: ${spent}, ${share}`);
      } },
      series: { type: "custom", encode: { x: [0, 1], y: 2 }, data,
        renderItem: bar(34, (api) => ({ fill: colour(ledger[api.value(3)].category),
          stroke: "var(--paper)" })) },
    });
  }

  const timeLine = drawTimeLine();
  charts.forEach((chart, i) => { if (chart.drawn.length) drawCurves(chart, i); });
  const zoomed = [...drawn];
  for (const chart of zoomed) { // the charts zoom and move together
    chart.on("datazoom", ({ batch, ...event }) => {
      const { start, end: until } = batch?.[0] ?? event;
      for (const other of zoomed) {
        const [zoom] = other.getOption().dataZoom;
        if (zoom.start !== start || zoom.end !== until) {
          other.dispatchAction({ type: "dataZoom", start, end: until });
        }
      }
    });
  }
  if (ledger.length) drawLedger();
  timeLine.on("click", ({ data }) => {
    const end = document.getElementById(data.mark?.link ?? "");
    if (!end) return;
    location.hash = end.id;
    end.scrollIntoView(); // also if the hash is the same as before
    end.focus();
  });

  // Buttons and keys

  function shown() {
    const [{ start, end: until, startValue, endValue }] = timeLine.getOption().dataZoom;
    return { start, until, startValue, endValue };
  }

  function show(start, span) {
    const width = Math.min(100, Math.max(NARROWEST, span));
    const first = Math.min(100 - width, Math.max(0, start));
    timeLine.dispatchAction({ type: "dataZoom", start: first, end: first + width });
  }

  function zoom(by) {
    const { start, until } = shown();
    show((start + until) / 2 - (until - start) / by / 2, (until - start) / by);
  }

  function move(by) {
    const { start, until } = shown();
    show(start + by * (until - start), until - start);
  }

  const ACTIONS = {
    in: () => zoom(1.5), out: () => zoom(1 / 1.5), left: () => move(-0.2), right: () => move(0.2),
    reset: () => show(0, 100),
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
  const range = document.getElementById("range");
  timeLine.on("datazoom", () => {
    const { startValue, endValue } = shown();
    range.textContent = `${clock(startValue)} to ${clock(endValue)}`;
  });
  addEventListener("resize", () => drawn.forEach((chart) => chart.resize()));

  // The theme, and paper

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme
      || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  });
  let opened = [];
  addEventListener("beforeprint", () => { // print folded parts; fit drawings to the paper
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
    for (const chart of drawn) {
      const size = `0 0 ${chart.getWidth()} ${chart.getHeight()}`;
      chart.getDom().querySelector("svg").setAttribute("viewBox", size);
    }
  });
  addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
    for (const chart of drawn) chart.getDom().querySelector("svg").removeAttribute("viewBox");
  });
})();
