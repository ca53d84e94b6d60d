// What JavaScript adds to the page: the theme switch, live charts, the edge that is pointed at, and sorted tables.
"use strict";

(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("gator-theme", root.dataset.theme); } catch {}
  });
})();

// Charts are drawn for the width of the page when they come near the screen. Until then the drawing in the file is shown.
(() => {
  const family = JSON.stringify(getComputedStyle(document.body).fontFamily);
  const charts = JSON.parse(document.getElementById("charts").textContent.replaceAll('"sans-serif"', family));
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const showTip = (_, event, item, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const rows = Object.entries(typeof value === "object" ? value : { "": value });
    tip.replaceChildren(...rows.flatMap(([key, text]) => {
      const parts = [document.createElement("span"), document.createElement("b")];
      parts[0].textContent = key;
      parts[1].textContent = text;
      return parts;
    }));
    const right = event.clientX + 14 + tip.offsetWidth < innerWidth;
    tip.style.left = `${Math.max(4, right ? event.clientX + 14 : event.clientX - 14 - tip.offsetWidth)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
  };
  const draw = async (place) => {
    const fresh = document.createElement("div");
    const view = new vega.View(vega.parse(charts[place.dataset.chart]), { renderer: "svg", hover: true, tooltip: showTip });
    await view.initialize(fresh).width(place.clientWidth).runAsync();
    place.replaceChildren(fresh);
    place.classList.add("live");
    place.dataset.drawn = "";
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth === width) return;
      width = place.clientWidth;
      view.width(width).runAsync();
    }).observe(place);
  };
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "500px" });
  for (const place of document.querySelectorAll("[data-chart]")) if (charts[place.dataset.chart]) near.observe(place);
})();

// A network and its table: pointing at an edge in either lights it up in both; a click keeps it.
for (const figure of document.querySelectorAll("figure.network")) {
  const edges = JSON.parse(figure.querySelector("script.edges").textContent);
  const groups = [...figure.querySelectorAll("g.edge")];
  const scope = figure.closest("section").nextElementSibling;
  const table = scope ? scope.querySelector("table.sortable") : null;
  const rows = table ? new Map([...table.querySelectorAll("tbody tr")].map((row) => [Number(row.dataset.edge), row])) : new Map();
  const panel = figure.querySelector(".pointed");
  const facts = panel.querySelector(".facts");
  let kept = null;

  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const list = (title, layers) => {
    const items = document.createElement("ul");
    items.append(...(layers.length ? layers : ["nothing"]).map((layer) => element("li", layer)));
    return [element("h4", title), items];
  };
  const show = (chosen) => {
    const lit = new Set(chosen);
    groups.forEach((group, index) => group.classList.toggle("lit", lit.has(index)));
    rows.forEach((row, index) => row.classList.toggle("lit", lit.has(index)));
    panel.querySelector(".hint").hidden = lit.size > 0;
    facts.replaceChildren(...[...lit].slice(0, 2).flatMap((index) => {
      const edge = edges[index];
      const now = edge.after === null ? "" : ` \u2192 ${edge.after}`;
      return [
        element("h3", edge.name), element("p", `${edge.before}${now} channels`, "channels"),
        element("p", edge.highway ? "a highway: additions tie these layers" : "", "note"),
        ...list("written by", edge.producers), ...list("read by", edge.consumers),
      ];
    }));
  };
  const rest = () => show(kept === null ? [] : [kept]);
  const point = (target, chosen) => {
    target.addEventListener("pointerenter", () => show(chosen));
    target.addEventListener("pointerleave", rest);
  };
  const keep = (index) => { kept = kept === index ? null : index; rest(); };

  groups.forEach((group, index) => {
    point(group, [index]);
    group.addEventListener("click", () => keep(index));
    group.addEventListener("focus", () => show([index]));
    group.addEventListener("blur", rest);
    group.addEventListener("keydown", (event) => { if (event.key === "Enter") keep(index); });
  });
  rows.forEach((row, index) => {
    point(row, [index]);
    row.addEventListener("click", () => {
      keep(index);
      if (kept !== null) groups[index].scrollIntoView({ block: "center", behavior: "smooth" });
    });
  });
  for (const name of figure.querySelectorAll("text.layer")) {
    const layer = name.dataset.layer;
    const of = edges.flatMap((edge, index) => (edge.producers.includes(layer) || edge.consumers.includes(layer) ? [index] : []));
    point(name, of);
  }
}

// Headings of tables sort; numbers by value, largest first at the first click.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const first = head.classList.contains("number") && column ? "descending" : "ascending";
      const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = (a, b) => (isNaN(value(a)) ? value(a).localeCompare(value(b), undefined, { numeric: true }) : value(a) - value(b));
      body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
    });
  });
}
