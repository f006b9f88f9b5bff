"use strict";
(() => {
  // Paper cannot be clicked: what is folded away is shown on it.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((details) => (details.open = true));
  });
  addEventListener("afterprint", () => closed.forEach((details) => (details.open = false)));

  const data = document.getElementById("flame-data");
  if (!data) return;
  const { names, options, nodes } = JSON.parse(data.textContent);
  const graph = document.getElementById("flame-graph");
  const detail = document.getElementById("flame-detail");
  const search = document.getElementById("flame-search");
  const matched = document.getElementById("flame-matched");
  const reset = document.getElementById("flame-reset");
  const ROW = 18;

  // The tree, from its walk.
  const root = { name: "all", samples: 0, color: -1, depth: 0, start: 0, children: [] };
  const open = [root];
  for (const [depth, name, samples, color] of nodes) {
    open.length = depth + 1;
    const parent = open[depth];
    const node = { name: names[name], samples, color, depth: depth + 1, parent, children: [] };
    parent.children.push(node);
    open.push(node);
  }
  root.samples = root.children.reduce((sum, child) => sum + child.samples, 0);
  const place = (node, start) => {
    node.start = start;
    for (const child of node.children) {
      place(child, start);
      start += child.samples;
    }
  };
  place(root, 0);

  let zoomed = root;
  let pattern = "";
  const percent = (node) => ((100 * node.samples) / root.samples).toFixed(2) + " %";
  const matches = (node) => pattern !== "" && node.name.toLowerCase().includes(pattern);
  const describe = (node) => {
    const owner = node.color >= 0 ? ", " + (options[node.color] || "an option") : "";
    return node.name + ": " + node.samples.toLocaleString("en") + " samples, " + percent(node) + owner;
  };

  const draw = () => {
    const width = graph.clientWidth || 1;
    const boxes = document.createDocumentFragment();
    let deepest = 0;
    const add = (node) => {
      const from = Math.max(node.start, zoomed.start);
      const to = Math.min(node.start + node.samples, zoomed.start + zoomed.samples);
      const share = (to - from) / zoomed.samples;
      if (share * width < 0.7) return;
      const box = document.createElement("div");
      box.node = node;
      box.tabIndex = 0;
      box.setAttribute("role", "treeitem");
      box.title = describe(node);
      box.textContent = node.name;
      box.className = matches(node)
        ? "match"
        : node.color >= 0
          ? "c" + node.color
          : node.depth % 2
            ? ""
            : "alt";
      if (share * width < 14) box.classList.add("thin");
      box.style.left = (100 * (from - zoomed.start)) / zoomed.samples + "%";
      box.style.width = 100 * share + "%";
      box.style.top = node.depth * ROW + "px";
      boxes.append(box);
      deepest = Math.max(deepest, node.depth);
      node.children.forEach((child) => {
        if (child.start < zoomed.start + zoomed.samples && child.start + child.samples > zoomed.start)
          add(child);
      });
    };
    add(root);
    graph.replaceChildren(boxes);
    graph.style.height = (deepest + 1) * ROW + "px";
    reset.disabled = zoomed === root;
  };

  const zoom = (node) => {
    zoomed = node;
    detail.textContent = describe(node);
    draw();
  };
  const find = () => {
    pattern = search.value.trim().toLowerCase();
    // A match within a match is the same time.
    const sum = (node) =>
      matches(node) ? node.samples : node.children.reduce((total, child) => total + sum(child), 0);
    matched.textContent =
      pattern === "" ? "" : "matched " + ((100 * sum(root)) / root.samples).toFixed(2) + " %";
    draw();
  };

  graph.addEventListener("click", (event) => event.target.node && zoom(event.target.node));
  graph.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.node) zoom(event.target.node);
  });
  const show = (event) => {
    if (event.target.node) detail.textContent = describe(event.target.node);
  };
  graph.addEventListener("mouseover", show);
  graph.addEventListener("focusin", show);
  reset.addEventListener("click", () => zoom(root));
  search.addEventListener("input", find);
  addEventListener("keydown", (event) => event.key === "Escape" && zoom(root));
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(draw);
  });
  draw();
})();
