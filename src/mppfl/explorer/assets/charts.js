/* How a chart looks: what the server says of it (charts.py), as a figure for Plotly in the colours of the style sheet.
   Lines are told apart by colour, dash and marker, bars by colour and pattern. Text is 13 pixels or more. */
(function () {
  "use strict";

  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon"];
  const PATTERNS = ["", "/", "x", ".", "-", "+"];
  const MARKED_BELOW = 32; /* points of a line that get a marker each */
  const ONE_LINE = 26; /* letters of an axis' name that fit beside a small figure */
  const HEIGHT = 340; /* pixels; charts of bars grow with their rows */
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const CLEAR = "rgba(0,0,0,0)";

  const escape = (text) => text.replace(/[&<>"']/g, (letter) => "&#" + letter.charCodeAt(0) + ";");
  const cut = (label, most) => (label.length <= most ? label : label.slice(0, most - 1) + "…");

  /* The colours of the page as it is now: light or dark. */
  function look() {
    const sheet = window.getComputedStyle(document.documentElement);
    const colour = (name) => sheet.getPropertyValue(name).trim();
    const slots = [0, 1, 2, 3, 4, 5, 6, 7].map((slot) => colour("--c" + slot));
    return { of: (slot) => slots[slot % slots.length], text: colour("--plot-ink"), grid: colour("--plot-grid"), ground: colour("--plot-ground") };
  }

  function cloudTrace(cloud, chart, colours) {
    const many = cloud.labels.length > 300;
    const chosen = cloud !== chart.lines[0] && cloud.labels.length === 1;
    const value = (axis, letter) => `<br>${escape(axis.name)} %{${letter}:.4~g} ${escape(axis.unit)}`;
    return {
      type: "scatter", mode: "markers", name: escape(cloud.name), x: cloud.x, y: cloud.y, customdata: cloud.labels.map(escape),
      marker: { color: colours.of(cloud.slot), size: chosen ? 14 : many ? 6 : 9, opacity: many ? 0.55 : 0.85, symbol: SYMBOLS[cloud.slot % SYMBOLS.length] },
      hovertemplate: `<b>%{customdata}</b>${value(chart.x, "x")}${value(chart.y, "y")}<extra></extra>`,
    };
  }

  function lineTraces(line, chart, colours) {
    if (line.labels.length) return [cloudTrace(line, chart, colours)];
    const shared = { type: "scatter", name: escape(line.name), legendgroup: String(line.slot) };
    const colour = colours.of(line.slot);
    const hover = `<b>%{fullData.name}</b> %{y:.4~g} ${escape(chart.y.unit)}`;
    const trace = { ...shared, mode: line.x.length < MARKED_BELOW ? "lines+markers" : "lines", x: line.x, y: line.y,
      line: { color: colour, width: 2, dash: line.dash ? line.dash.replaceAll(" ", "px,") + "px" : "solid" },
      marker: { color: colour, size: 6, symbol: SYMBOLS[line.slot % SYMBOLS.length] }, hovertemplate: hover + "<extra></extra>" };
    if (!line.low) return [trace];
    trace.customdata = line.low.map((low, place) => [low, line.high[place]]);
    trace.hovertemplate = hover + "<br>from %{customdata[0]:.4~g} to %{customdata[1]:.4~g}<extra></extra>";
    const drawn = [...line.x.keys()].filter((place) => line.low[place] !== null && line.high[place] !== null);
    const along = (values) => drawn.map((place) => values[place]);
    /* The more bands lie over each other, the fainter they are. */
    const opacity = chart.lines.filter((each) => each.low).length <= 2 ? 0.18 : 0.07;
    const rgb = [1, 3, 5].map((part) => parseInt(colour.slice(part, part + 2), 16)).join(",");
    const band = { ...shared, mode: "lines", showlegend: false, hoverinfo: "skip", x: along(line.x).concat(along(line.x).reverse()),
      y: along(line.high).concat(along(line.low).reverse()), fill: "toself", fillcolor: `rgba(${rgb},${opacity})`, line: { width: 0 } };
    return [band, trace];
  }

  function barTrace(group, place, chart, colours) {
    return {
      type: "bar", orientation: "h", name: escape(group.name), x: group.values,
      y: [...chart.labels.keys()], /* not labels: two clients may have the same beginning, and Plotly would add up equal ones */
      customdata: chart.labels.map(escape),
      marker: { color: chart.label_slots.length ? chart.label_slots.map(colours.of) : colours.of(group.slot),
        pattern: { shape: PATTERNS[place % PATTERNS.length], size: 6, solidity: 0.35 } },
      hovertemplate: `%{customdata}: <b>%{x:.4~g}</b> ${escape(chart.x.unit)}<extra>%{fullData.name}</extra>`,
    };
  }

  function axis(said, colours) {
    const between = `${said.name} (${said.unit})`.length > ONE_LINE ? "<br>" : " "; /* two lines where one would not fit on a phone */
    const title = { text: `${escape(said.name)}${between}(${escape(said.unit)})`, font: { size: 14 }, standoff: 8 };
    const powers = said.log ? { dtick: 1 } : {}; /* powers of ten alone: Plotly writes those between them too small to read */
    return { title, type: said.log ? "log" : "linear", automargin: true, tickfont: { size: 13 }, gridcolor: colours.grid, linecolor: colours.text,
      showline: true, ticks: "outside", ticklen: 4, zeroline: !said.log, zerolinecolor: colours.text, zerolinewidth: 1, exponentformat: "power", ...powers };
  }

  function layout(chart, colours) {
    const [rows, groups] = [chart.labels.length, chart.bars.length];
    const several = Math.max(chart.lines.length, groups) > 1;
    const curves = chart.lines.length > 0 && !chart.lines.some((line) => line.labels.length);
    /* Each further line of the legend, on a phone, would be taken from the figure. */
    const height = HEIGHT + 20 * Math.max(0, chart.lines.length - 3);
    const left = { x: 0, xanchor: "left", yref: "container" };
    const made = {
      title: { text: `<b>${escape(chart.title)}</b>`, font: { size: 16 }, pad: { l: 8, t: 10 }, ...left, xref: "container", y: 1, yanchor: "top" },
      font: { family: FONT, size: 13, color: colours.text }, paper_bgcolor: CLEAR, plot_bgcolor: CLEAR, margin: { l: 8, r: 12, t: 44, b: 8 },
      height: rows ? Math.max(220, 110 + 30 * several + rows * (8 + 14 * groups)) : height, autosize: true,
      xaxis: axis(chart.x, colours), yaxis: axis(chart.y, colours), showlegend: several,
      /* Under the x axis' name, growing downwards: it makes room for itself and covers nothing. */
      legend: { orientation: "h", font: { size: 13 }, bgcolor: CLEAR, itemwidth: 40, ...left, y: 0, yanchor: "bottom" },
      hovermode: curves ? "x unified" : "closest",
      hoverlabel: { font: { size: 13, color: colours.text }, bgcolor: colours.ground, bordercolor: colours.grid },
      uirevision: chart.key, shapes: [], annotations: [], /* the reader's zoom is kept while the key is the same */
    };
    if (curves) Object.assign(made.xaxis, { hoverformat: ".4~g", zeroline: false, unifiedhovertitle: { text: `${escape(chart.x.name)} %{x}` } });
    if (rows) {
      Object.assign(made, { bargap: 0.25, bargroupgap: 0.05 });
      Object.assign(made.yaxis, { autorange: "reversed", tickmode: "array", tickvals: [...chart.labels.keys()], showgrid: false, zeroline: false,
        ticktext: chart.labels.map((label) => escape(cut(label, 22))) }); /* hovering shows the whole */
    }
    if (chart.marked !== null) {
      const ends = { x0: chart.marked, x1: chart.marked, yref: "paper", y0: 0, y1: 1 };
      made.shapes = [{ type: "line", ...ends, layer: "below", line: { color: colours.text, width: 1, dash: "dot" } }];
    }
    if (chart.empty) made.annotations = [{ text: "nothing to show yet", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }];
    return made;
  }

  function figure(chart) {
    const colours = look();
    const bars = chart.bars.map((group, place) => barTrace(group, place, chart, colours));
    return { data: chart.lines.flatMap((line) => lineTraces(line, chart, colours)).concat(bars), layout: layout(chart, colours) };
  }

  window.mppflCharts = { figure };
})();
