/* What the page does by itself: gathers the levers, paints the graph, keeps the address and the theme. */
(function () {
  "use strict";

  const no = () => window.dash_clientside.no_update;
  const here = (id) => document.getElementById(id);
  let sequence = 0;
  let pictured = "";
  let ofCommunities = false;

  /* Cytoscape's own handle on the drawing, for repainting without React comparing thousands of elements. */
  function drawing() {
    const holder = document.querySelector("#graph .__________cytoscape_container") || here("graph");
    const inner = holder && (holder._cyreg ? holder : holder.querySelector("div"));
    for (const each of [holder, inner]) if (each && each._cyreg) return each._cyreg.cy;
    return null;
  }

  function paint(cy, given) {
    cy.batch(() => {
      cy.edges(".walk").remove();
      cy.nodes().removeClass("chosen source");
      given.colours.forEach((colour, place) => cy.getElementById("n" + place).data("paint", colour));
      const steps = new Set(); /* walks share links: each is drawn once */
      for (const walk of given.walks) for (let at = 0; at + 1 < walk.length; at++) steps.add(walk[at] + " " + walk[at + 1]);
      for (const step of steps) {
        const [source, target] = step.split(" ");
        cy.add({ group: "edges", classes: "walk", data: { id: "w" + source + "-" + target, source: "n" + source, target: "n" + target } });
      }
      given.sources.forEach((place) => cy.getElementById("n" + place).addClass("source"));
      if (given.chosen !== null) cy.getElementById("n" + given.chosen).addClass("chosen");
    });
    ofCommunities = given.communities;
    document.body.dataset.answered = given.sequence;
  }

  /* Nodes and links go to Cytoscape itself: React would compare thousands of them one by one. */
  function draw(given) {
    const cy = drawing();
    if (!cy) { requestAnimationFrame(() => draw(given)); return; } /* it is not there yet */
    if (given.key !== pictured) return; /* another picture has been asked for meanwhile */
    cy.batch(() => {
      cy.elements().remove();
      const lines = given.elements.length - cy.add(given.elements).nodes().length;
      if (lines > 1500) cy.edges().addClass("dense");
    });
    cy.resize();
    cy.fit(cy.nodes(), 24);
    document.body.dataset.drawn = cy.nodes().length;
    document.body.dataset.picture = given.key;
  }

  /* Colours may arrive before what they are for: paint once as many nodes are there as were painted. */
  function paintWhenDrawn(given, patience) {
    const cy = drawing();
    if (cy && cy.nodes().length === given.colours.length && document.body.dataset.picture === given.picture) paint(cy, given);
    else if (patience > 0) requestAnimationFrame(() => paintWhenDrawn(given, patience - 1));
  }

  /* Plotly comes from this server too, with the first chart. */
  const PLOTLY = "_dash-component-suites/plotly/package_data/plotly.min.js";
  let plotly = null;
  function withPlotly() {
    plotly = plotly || new Promise((done, failed) => {
      const onerror = () => { plotly = null; failed(new Error("Plotly could not be loaded.")); }; /* the next chart tries again */
      document.head.append(Object.assign(document.createElement("script"), { src: PLOTLY, onload: () => done(window.Plotly), onerror }));
    });
    return plotly;
  }

  const inSight = (frame) => { const at = frame.getBoundingClientRect(); return at.top < window.innerHeight && at.bottom > 0; };
  const charts = new Map(); /* what each frame is to show, and has not yet drawn */
  const drawnCharts = new Map(); /* what each frame shows: drawn again where the theme changes */
  let newest = null; /* whose charts are to be seen: an older answer may still be drawing when the next one comes */

  function made(tag, attributes, ...inside) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...inside);
    return element;
  }

  /* A chart, which its alt text names, and what must be read beside it. */
  function frameOf(key, holder) {
    if (here("frame-" + key)) return here("frame-" + key);
    const frame = made("figure", { id: "frame-" + key, class: "chart" },
      made("div", { id: "chart-" + key, class: "plot", role: "img" }), made("p", { id: "note-" + key, class: "soft" }));
    holder.append(frame);
    return frame;
  }

  function plot(Plotly, key) {
    if (!charts.has(key)) return null;
    const place = here("chart-" + key), { data, layout } = window.mppflCharts.figure(charts.get(key));
    drawnCharts.set(key, charts.get(key));
    charts.delete(key);
    place.style.height = layout.height + "px";
    return Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
  }

  /* Charts in sight are drawn at once, the others one a frame, when those are there. */
  async function plotAll(given) {
    newest = given;
    const holder = document.querySelector("#panel-" + given.tab + " .charts");
    const frames = new Map(given.charts.map((each) => [each.key, frameOf(each.key, holder)]));
    for (const frame of holder.children) frame.hidden = true;
    for (const each of given.charts) {
      charts.set(each.key, each);
      frames.get(each.key).hidden = false;
      here("note-" + each.key).textContent = each.note;
      here("chart-" + each.key).setAttribute("aria-label", each.words);
    }
    const Plotly = await withPlotly();
    const [first, later] = [[], []];
    for (const [key, frame] of frames) (inSight(frame) ? first : later).push(key);
    await Promise.all(first.map((key) => plot(Plotly, key)));
    if (newest === given) document.body.dataset.plotted = given.sequence;
    for (const key of later) {
      await new Promise(requestAnimationFrame);
      await plot(Plotly, key);
    }
    if (newest === given && !charts.size) document.body.dataset.allPlotted = given.sequence;
  }

  /* Dash's own parts lack names and roles that a screen reader needs: they get them whenever they are drawn anew. */
  const GROUPS = { "lever-tab": "What to show", "lever-colour": "Colour of the clients", "lever-event": "What the other client does",
    "lever-runs": "Runs, one over the other", "lever-undirected": "Direction of the links" };

  function nameParts() {
    for (const list of document.querySelectorAll('.dash-options-list[role="listbox"]')) {
      if (!GROUPS[list.id]) continue;
      list.setAttribute("role", list.classList.contains("dash-radioitems") ? "radiogroup" : "group");
      list.setAttribute("aria-label", GROUPS[list.id]);
    }
    for (const option of document.querySelectorAll("label.dash-options-list-option[aria-selected]")) {
      if (!GROUPS[option.parentElement.id]) continue; /* those of an open dropdown are options indeed */
      option.removeAttribute("role");
      option.removeAttribute("aria-selected");
    }
    for (const target of document.querySelectorAll('.dash-dropdown-focus-target:not([tabindex="-1"])')) {
      target.tabIndex = -1;
      const button = target.parentElement.querySelector("button.dash-dropdown");
      if (button) button.tabIndex = 0; /* the button takes the focus itself, not by way of a hidden input */
    }
    for (const button of document.querySelectorAll("button.dash-dropdown")) {
      const words = "words-" + button.id.slice("lever-".length);
      const named = button.getAttribute("aria-labelledby") || "";
      if (here(words) && !named.startsWith(words)) button.setAttribute("aria-labelledby", words + " " + named);
    }
  }

  let naming = false;
  function nameSoon() {
    if (naming) return;
    naming = true;
    requestAnimationFrame(() => { naming = false; nameParts(); });
  }
  new MutationObserver(nameSoon).observe(document.documentElement, { childList: true, subtree: true, attributeFilter: ["aria-selected"] });
  document.addEventListener("focusout", nameSoon);

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    explorer: {
      gather() {
        const state = { sequence: ++sequence };
        for (const each of window.dash_clientside.callback_context.inputs_list.flat()) {
          if (each.id === "theme") state.dark = (each.value || "light") === "dark";
          else state[each.id.slice("lever-".length)] = each.value === undefined ? null : each.value;
        }
        document.body.dataset.asked = sequence;
        return state;
      },

      pictureKey(state) {
        if (!state) return no();
        const key = JSON.stringify(["graph", "family", "num_clients", "seed", "undirected", "opened", "rest"].map((name) => state[name]));
        if (key === pictured) return no();
        pictured = key;
        return key;
      },

      drawn(given) {
        if (given) draw(given);
        return no();
      },

      /* An answer to the levers, or a look at the runs: what it holds goes where it belongs. */
      answered(given) {
        if (!given) return no();
        for (const id of ["alert", "summary"]) if (given[id] !== undefined && here(id).textContent !== given[id]) here(id).textContent = given[id];
        if (given.query !== undefined) {
          window.history.replaceState(null, "", window.location.pathname + given.query);
          document.querySelectorAll("a[data-path]").forEach((link) => link.setAttribute("href", link.dataset.path + given.query));
        }
        /* The server has escaped every word in these. */
        for (const [id, text] of Object.entries(given.texts || {})) if (here(id).innerHTML !== text) here(id).innerHTML = text;
        if (given.paint) paintWhenDrawn(given.paint, 240);
        if (given.plots) plotAll(given.plots).catch((error) => { here("alert").textContent = error.message; });
        return no();
      },

      tapped(node, opened) {
        if (!node) return [no(), no()];
        if (ofCommunities) return [no(), (opened || []).concat([node.community])];
        return [node.name, no()];
      },

      named(names) {
        here("client-names").replaceChildren(...(names || []).map((name) => Object.assign(document.createElement("option"), { value: name })));
        return no();
      },

      copied(clicks) {
        if (!clicks) return no();
        const ask = () => window.prompt("The link", window.location.href);
        if (!navigator.clipboard) ask(); /* only pages of this machine, or over https, may write to it */
        else navigator.clipboard.writeText(window.location.href).then(() => {
          here("copy").textContent = "Copied";
          setTimeout(() => { here("copy").textContent = "Copy link"; }, 1500);
        }, ask);
        return no();
      },

      theme(clicks) {
        const kept = window.localStorage.getItem("mppfl-theme");
        const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
        let now = kept || system;
        if (clicks) {
          now = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
          window.localStorage.setItem("mppfl-theme", now);
        }
        document.documentElement.dataset.theme = now;
        for (const [key, each] of drawnCharts) {
          if (!charts.has(key)) charts.set(key, each);
          plot(window.Plotly, key);
        }
        return [now, now === "dark" ? "Light" : "Dark"];
      },

      /* How nodes and edges look, by Cytoscape's selectors; paint() gives their classes and colours. */
      stylesheet(theme) {
        if (!theme) return no();
        const sheet = window.getComputedStyle(document.documentElement);
        const [ink, line, border, strong] = ["--ink", "--edge", "--node-border", "--c1"].map((name) => sheet.getPropertyValue(name).trim());
        const styles = {
          "node": { "width": 16, "height": 16, "background-color": line, "border-width": 1, "border-color": border },
          "node[paint]": { "background-color": "data(paint)" },
          "node[diameter]": { "width": "data(diameter)", "height": "data(diameter)" },
          "node[label]": { "color": ink, "font-size": 17, "min-zoomed-font-size": 8, "text-valign": "top", "text-margin-y": -2 },
          "node.named": { "label": "data(label)" },
          "edge": { "curve-style": "haystack", "haystack-radius": 0, "width": 1, "line-color": line, "opacity": 0.35 },
          "edge.w2": { "width": 1.3, "opacity": 0.45 },
          "edge.w3": { "width": 1.8, "opacity": 0.55 },
          "edge.w4": { "width": 2.6, "opacity": 0.7 },
          "edge.dense": { "opacity": 0.13, "width": 1 },
          "node.source": { "border-width": 3, "border-color": strong, "label": "data(label)" },
          "node.chosen": { "border-width": 5, "border-color": strong, "label": "data(label)", "font-weight": "bold" },
          "edge.walk": { "curve-style": "straight", "width": 3, "opacity": 0.95, "line-color": strong, "z-index": 9,
            "target-arrow-shape": "triangle", "target-arrow-color": strong },
        };
        return Object.entries(styles).map(([selector, style]) => ({ selector, style }));
      },

      shown(tab, mechanism, graph, participation) {
        for (const each of document.querySelectorAll(".panel")) each.hidden = each.id !== "panel-" + tab;
        const drawnHere = graph === "random";
        const visible = { "random-levers": drawnHere, "file-levers": !drawnHere, "against-lever": participation === "rational" };
        for (const [id, is] of Object.entries(visible)) here(id).hidden = !is;
        for (const each of document.querySelectorAll("[data-mechanism]")) each.hidden = each.dataset.mechanism !== mechanism;
        requestAnimationFrame(() => {
          window.dispatchEvent(new Event("resize"));
          const cy = drawing();
          if (cy && tab === "network") { cy.resize(); cy.fit(cy.nodes(), 24); }
        });
        return tab !== "run";
      },

      words(value) {
        return String(value);
      },
    },
  });

  document.addEventListener("keydown", (event) => {
    const cy = drawing();
    if (!cy || !event.target.closest || !event.target.closest(".graph-frame")) return;
    const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    if (step) cy.panBy({ x: step[0], y: step[1] });
    else if (event.key === "+") cy.zoom(cy.zoom() * 1.25);
    else if (event.key === "-") cy.zoom(cy.zoom() / 1.25);
    else if (event.key === "0") cy.fit(cy.nodes(), 24);
    else return;
    event.preventDefault();
  });
})();
