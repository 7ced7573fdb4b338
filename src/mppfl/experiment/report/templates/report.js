"use strict";
// Tooltips, the cursor over curves, and the round slider. The page is complete without any of this.
document.documentElement.classList.add("js");
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  const shown = (value, percent) => {
    if (value === null || value === undefined) return "–";
    if (typeof value === "string") return value;
    if (percent) return (100 * value).toFixed(1) + " %";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e9 || size < 1e-4) return value.toExponential(2);
    return value.toLocaleString("en", { maximumSignificantDigits: Math.max(3, Math.ceil(Math.log10(size))) });
  };
  const say = (text, event) => {
    tip.textContent = text;  // never as HTML: names are whatever clients call themselves
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + "px";
  };
  const hush = () => { tip.style.display = "none"; };
  const place = (svg, event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [at.x, at.y];
  };

  document.querySelectorAll("svg[data-chart]").forEach((svg) => {
    const chart = data.charts[svg.dataset.chart], cursor = svg.querySelector(".cursor");
    if (!chart) return;
    svg.addEventListener("pointermove", (event) => {
      const [x] = place(svg, event);
      const wanted = chart.x_low + (chart.x_high - chart.x_low) * (x - chart.left) / (chart.right - chart.left);
      const rounds = [...new Set(chart.series.flatMap((each) => each.x))];
      const round = rounds.reduce((a, b) => Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a);
      const at = chart.left + (chart.right - chart.left) * (round - chart.x_low) / (chart.x_high - chart.x_low);
      cursor.setAttribute("d", `M${at} ${chart.top}V${chart.bottom}`);
      const lines = chart.series.map((each) => [each.name, each.y[each.x.indexOf(round)]]);
      lines.sort((a, b) => (typeof b[1] === "number" ? b[1] : -1e99) - (typeof a[1] === "number" ? a[1] : -1e99));
      say(`round ${round}\n` + lines.map(([name, value]) => `${name}  ${shown(value, chart.percent)}`).join("\n"), event);
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("d", ""); hush(); });
  });

  document.querySelectorAll("svg[data-heat]").forEach((svg) => {
    const heat = data.heats[svg.dataset.heat], [left, top, wide, high] = heat.frame;
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = place(svg, event);
      const column = Math.floor((x - left) / wide), row = Math.floor((y - top) / high);
      if (column < 0 || row < 0 || column >= heat.columns.length || row >= heat.names.length) return hush();
      const [first, last] = heat.columns[column];
      const when = first === last ? `round ${first}` : `rounds ${first} to ${last}`;
      say(`${heat.names[row]}, ${when}\npaid ${shown(heat.values[row][column])}${first === last ? "" : " a round"}`, event);
    });
    svg.addEventListener("pointerleave", hush);
  });

  const slider = document.getElementById("round"), colour = document.getElementById("colour");
  const said = document.getElementById("round-said"), top_ = document.getElementById("ramp-top");
  const { ends, runs } = data.graphs;
  const paint = (value, end) => {
    if (value === null || value === undefined) return "var(--unknown)";
    if (typeof value === "string") return "var(--infinite)";
    const share = end > 0 ? Math.min(1, Math.max(0, value / end)) : 0;
    return data.scale[Math.round(share * (data.scale.length - 1))];
  };
  const graphs = [...document.querySelectorAll("svg[data-graph]")].map((svg) => {
    const nodes = [...svg.querySelectorAll("circle")];
    nodes.forEach((node) => { node.dataset.r = node.getAttribute("r"); });
    return [runs[svg.dataset.graph], nodes];
  });
  const draw = () => {
    const round = slider ? Number(slider.value) : 0, which = round ? "budgets" : colour.value;
    colour.disabled = round > 0;
    for (const [run, nodes] of graphs) {
      const values = round ? run.budgets[round - 1] : run[which];
      const money = round ? run.payments[round - 1] : run.paid;
      const small = nodes.length <= 60 ? [6, 15] : [3, 8];
      nodes.forEach((node, at) => {
        node.setAttribute("fill", round && values[at] === 0 ? "var(--unknown)" : paint(values[at], ends[which]));
        const share = round && typeof money[at] === "number" && ends.payments > 0 ? Math.sqrt(Math.max(0, money[at]) / ends.payments) : 0;
        node.setAttribute("r", round ? small[0] + (small[1] - small[0]) * share : node.dataset.r);
        const words = { budgets: "budget ρ", spent: "spent ρ", exposure: "exposure" }[which];
        node.firstElementChild.textContent = `${run.names[at]}: ${words} ${shown(values[at])}, paid ${shown(money[at])}`;
      });
    }
    if (said) said.textContent = round ? `round ${graphs[0][0].rounds[round - 1]}` : "all rounds";
    top_.textContent = shown(ends[which]) + { budgets: " ρ in the round", spent: " spent ρ", exposure: " exposure" }[which];
  };
  if (slider) slider.addEventListener("input", draw);
  if (colour) colour.addEventListener("change", draw);

  addEventListener("beforeprint", () => document.querySelectorAll("details.run").forEach((each) => { each.open = true; }));
  const unfold = () => {
    const goal = location.hash && document.getElementById(location.hash.slice(1));
    if (goal && goal.tagName === "DETAILS") { goal.open = true; goal.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();
})();
