// Filters, switches, sorting and the card of a point. The rows are the only data: those of the
// table or, if they are many, lines of text of which it shows some at a time.
"use strict";
{
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const hide = (element, hidden) => element.toggleAttribute("hidden", hidden);
  const table = document.querySelector("table.rows");
  const heads = all("th", table);
  const body = table.tBodies[0];
  const box = table.closest(".wide");

  // Rows ------------------------------------------------------------------------------------------

  const MOST = 500; // rows that the table shows at once

  function read() {
    const data = document.getElementById("data");
    if (!data)
      return [...body.rows].map((row) => ({
        id: row.id, row, cells: [...row.cells].map((cell) => cell.textContent),
      }));
    const lines = data.textContent.split("\n");
    data.parentElement.remove();
    return lines.map((line, i) => ({ id: `r${i + 1}`, cells: line.split("\t") }));
  }

  const rows = read(); // in the order of the table
  const rowOf = new Map(rows.map((row) => [row.id, row]));
  const named = (ids) => ids.split(" ").map((id) => rowOf.get(id));

  function elementOf(row) {
    if (row.row) return row.row;
    row.row = document.createElement("tr");
    row.row.id = row.id;
    row.cells.forEach((text, i) => {
      const cell = row.row.insertCell();
      cell.textContent = text;
      cell.className = heads[i].className;
    });
    return row.row;
  }

  let shown = rows;
  let first = 0; // the place of the first of them
  let height = 0; // all rows have one

  function space(count) {
    const row = document.createElement("tr");
    const cell = row.insertCell();
    cell.colSpan = heads.length;
    cell.style.cssText = `height: ${count * height}px; padding: 0; border: 0`;
    row.setAttribute("aria-hidden", "true");
    return row;
  }

  // Show the rows from ``start`` on, with space for the others.
  function fill(start, most = MOST) {
    first = Math.max(0, Math.min(start, shown.length - most));
    const some = shown.slice(first, first + most).map(elementOf);
    const after = shown.length - first - some.length;
    if (after + first > 0 && !height) {
      body.replaceChildren(some[0]);
      height = body.offsetHeight;
    }
    body.replaceChildren(
      ...(first > 0 ? [space(first)] : []), ...some, ...(after > 0 ? [space(after)] : []),
    );
  }

  function follow() {
    if (shown.length <= MOST) return;
    const top = Math.floor(box.scrollTop / height);
    const end = top + Math.ceil(box.clientHeight / height);
    if (first > Math.max(0, top - 20) || first + MOST < Math.min(shown.length, end + 20))
      fill(top - MOST / 2);
  }

  let aimed = null;

  // Show the row of the address, which the browser cannot find if the table has no element for it.
  function aim() {
    const row = rowOf.get(location.hash.slice(1));
    if (!row || shown.length <= MOST || !shown.includes(row)) return;
    const place = shown.indexOf(row);
    fill(place - MOST / 2);
    box.scrollTop = place * height - box.clientHeight / 2;
    aimed?.row.classList.remove("aimed");
    aimed = row;
    row.row.classList.add("aimed");
    box.scrollIntoView({ block: "nearest" });
  }

  function go(row) {
    location.hash = row.id;
    aim();
  }

  box.addEventListener("scroll", follow, { passive: true });
  addEventListener("hashchange", aim);
  addEventListener("beforeprint", () => fill(0, shown.length));
  addEventListener("afterprint", () => fill(0));

  // Points ----------------------------------------------------------------------------------------

  // A point is a link to its row or, if they are many, a part of its kernel's path in a panel.
  const links = all("a.pt").map((link) => ({
    link, row: rowOf.get(link.getAttribute("href").slice(1)), panel: link.closest(".panel"),
    modelled: link.getAttribute("transform"), counted: link.dataset.counted,
  }));
  const SHRUNK = 0.55; // size of a marker among many
  const paths = all("path.dots").map((path) => {
    const numbers = path.getAttribute("d").match(/[\d.]+(?=[ h])/g);
    const counted = path.dataset.counted?.split(" ");
    const dots = path.dataset.points.split(" ").map((number, i) => ({
      row: rowOf.get(`r${number}`), x: +numbers[2 * i], y: +numbers[2 * i + 1],
      modelled: +numbers[2 * i], counted: counted && +counted[i], // NaN is unknown
    }));
    const shape = document.getElementById(`m${path.dataset.shape}`).getAttribute("d").slice(1);
    path.classList.replace("dots", "pt");
    path.setAttribute("transform", `scale(${SHRUNK})`);
    let line = null;
    if ("joined" in path.dataset) {
      line = path.cloneNode();
      line.setAttribute("class", `series ${path.classList[1]}`);
      line.removeAttribute("transform");
      path.parentElement.insertBefore(line, path.parentElement.querySelector(".pt"));
    }
    return { path, dots, shape, line, panel: path.closest(".panel") };
  });

  function draw({ path, dots, shape, line }) {
    const there = dots.filter((dot) => dot.visible);
    const at = (value) => (value / SHRUNK).toFixed(1);
    const marks = there.map(({ x, y }) => `M${at(x)} ${at(y)}m${shape}`);
    path.setAttribute("d", marks.join(""));
    line?.setAttribute("d", there.length ? `M${there.map(({ x, y }) => `${x} ${y}`).join("L")}` : "");
  }

  const panels = all(".panel");
  const dotsOf = new Map(panels.map((panel) => [panel, []]));
  for (const { dots, panel } of paths) dotsOf.get(panel).push(...dots);
  for (const dots of dotsOf.values()) dots.sort((a, b) => a.x - b.x || a.y - b.y);

  // Filters ---------------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });
  const filters = all("select[data-filter]").map((select) => {
    const column = heads.findIndex((head) => head.dataset.filter === select.dataset.filter);
    if (select.options.length === 1) {
      const values = new Set(rows.map((row) => row.cells[column]));
      select.append(...[...values].filter(Boolean).sort(collator.compare).map((v) => new Option(v)));
    }
    return { select, column };
  });
  const bytes = () => document.querySelector('input[name="bytes"]:checked')?.value ?? "modelled";

  function accepts(row) {
    return filters.every(
      ({ select, column }) => !select.value || row.cells[column] === select.value,
    );
  }

  const isHidden = (row) => row.hidden;
  // A line that names one hidden row is hidden, a cause if all of its rows are.
  const lines = all("[data-rows]").map((line) => [line, named(line.dataset.rows)]);
  const causes = all("[data-any]").map((cause) => [cause, named(cause.dataset.any)]);
  const single = all("[data-row]").map((part) => [part, rowOf.get(part.dataset.row)]);

  function apply() {
    for (const row of rows) row.hidden = !accepts(row);
    shown = rows.filter((row) => !row.hidden);
    box.scrollTop = 0;
    fill(0);
    const counted = bytes() === "counted";
    const unknown = (point, panel) => counted && !point.counted && panel.closest("#rooflines");
    for (const point of links)
      hide(point.link, point.row.hidden || unknown(point, point.panel));
    for (const path of paths) {
      for (const dot of path.dots) dot.visible = !dot.row.hidden && !unknown(dot, path.panel);
      draw(path);
    }
    const stale = (line) => counted && line.closest("#rooflines"); // points have moved away
    for (const [line, its] of lines) hide(line, its.some(isHidden) || stale(line));
    for (const [cause, its] of causes) hide(cause, its.every(isHidden));
    for (const [part, row] of single) hide(part, row.hidden);
    const more = document.getElementById("more");
    if (more && filters.some(({ select }) => select.value)) more.open = true;
    for (const panel of panels) {
      const links = all("a.pt:not([hidden])", panel);
      hide(panel, !links.length && !dotsOf.get(panel).some((dot) => dot.visible));
      rove(panel);
    }
    document.getElementById("shown").textContent = `${shown.length} of ${rows.length} rows`;
    hideCard();
  }

  // Switches --------------------------------------------------------------------------------------

  function moveTo(kind) {
    for (const { link, modelled, counted } of links)
      if (counted)
        link.setAttribute("transform", kind === "counted" ? `translate(${counted})` : modelled);
    for (const { dots } of paths)
      for (const dot of dots)
        if (dot.counted) dot.x = dot[kind];
  }

  for (const switched of all("input[data-show]"))
    switched.addEventListener("change", () => {
      for (const part of all(`[data-roof="${switched.dataset.show}"]`))
        hide(part, !switched.checked);
    });
  for (const radio of all('input[name="bytes"]'))
    radio.addEventListener("change", () => {
      moveTo(bytes());
      apply();
    });
  for (const { select } of filters) select.addEventListener("change", apply);

  // The card of a point ---------------------------------------------------------------------------

  const card = document.getElementById("card");
  let current = null; // an element, its row

  function showCard(element, row) {
    hideCard();
    current = { element, row };
    const list = document.createElement("dl");
    heads.forEach((head, i) => {
      const text = row.cells[i];
      if (!text) return;
      for (const [tag, content] of [["dt", head.textContent], ["dd", text.slice(0, 200)]])
        list.appendChild(document.createElement(tag)).textContent = content;
    });
    card.replaceChildren(list);
    elementOf(row).classList.add("lit");
    card.hidden = false;
    place();
  }

  // Beside the point; on a narrow screen below it, or where there is room.
  function place() {
    if (!current) return;
    const [at, size] = [current.element, card].map((one) => one.getBoundingClientRect());
    const right = at.right + 12 + size.width < innerWidth;
    const left = right ? at.right + 12 : Math.max(8, at.left - 12 - size.width);
    const narrow = !right && at.left < size.width + 20;
    const top = narrow && at.bottom + 12 + size.height < innerHeight ? at.bottom + 12 : at.top;
    card.style.left = `${narrow ? 8 : left}px`;
    card.style.top = `${Math.max(8, Math.min(top, innerHeight - size.height - 8))}px`;
  }

  function hideCard() {
    card.hidden = true;
    if (current) elementOf(current.row).classList.remove("lit");
    ring.remove();
    current = null;
  }

  addEventListener("pointerdown", hideCard);
  addEventListener("scroll", place, { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideCard());

  // Between points the arrow keys move; a panel has one stop of the Tab key.
  function rove(panel, chosen) {
    const there = all("a.pt:not([hidden])", panel);
    const stop = chosen ?? there[0];
    for (const point of all("a.pt", panel))
      point.setAttribute("tabindex", point === stop ? 0 : -1);
  }

  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

  function step(event) {
    const panel = event.currentTarget.closest(".panel");
    const there = all("a.pt:not([hidden])", panel);
    const next = there[there.indexOf(event.currentTarget) + STEPS[event.key]];
    if (!next) return;
    event.preventDefault();
    rove(panel, next);
    next.focus();
  }

  for (const { link, row } of links) {
    const title = link.querySelector("title");
    link.setAttribute("aria-label", title.textContent);
    title.remove();
    link.addEventListener("pointerenter", () => showCard(link, row));
    link.addEventListener("pointerleave", hideCard);
    link.addEventListener("focus", () => showCard(link, row));
    link.addEventListener("blur", hideCard);
    link.addEventListener("keydown", step);
    link.addEventListener("click", (event) => {
      if (event.pointerType !== "touch") return;
      event.preventDefault(); // a tap shows the card, and does not leave the figure
      showCard(link, row);
    });
  }

  // Many points: the nearest one to the pointer has the card ---------------------------------------

  const REACH = 8; // pixels of a panel from a point
  const ring = document.querySelector("defs path").cloneNode(); // it is an element of SVG
  ring.removeAttribute("id");
  ring.setAttribute("class", "ring");
  ring.setAttribute("d", "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z");

  function pointAt(panel, dot) {
    if (dot.row === current?.row && ring.parentElement === panel) return;
    showCard(ring, dot.row);
    ring.setAttribute("transform", `translate(${dot.x},${dot.y})`);
    panel.append(ring);
    place();
  }

  function nearest(panel, event) {
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(panel.getScreenCTM().inverse());
    let best = null;
    let least = REACH;
    for (const dot of dotsOf.get(panel)) {
      const apart = dot.visible ? Math.hypot(dot.x - at.x, dot.y - at.y) : Infinity;
      if (apart < least) [best, least] = [dot, apart];
    }
    return best;
  }

  for (const [panel, dots] of dotsOf) {
    if (!dots.length) continue;
    let at = null; // where the keyboard is
    const visible = () => dots.filter((dot) => dot.visible);
    panel.setAttribute("tabindex", 0);
    panel.addEventListener("pointermove", (event) => {
      const dot = nearest(panel, event);
      dot ? pointAt(panel, dot) : hideCard();
    });
    panel.addEventListener("pointerleave", hideCard);
    panel.addEventListener("click", (event) => {
      const dot = nearest(panel, event);
      if (!dot) return;
      event.pointerType === "touch" ? pointAt(panel, dot) : go(dot.row);
    });
    panel.addEventListener("focus", () => {
      if (!panel.matches(":focus-visible")) return;
      at = at?.visible ? at : visible()[0];
      pointAt(panel, at);
    });
    panel.addEventListener("blur", hideCard);
    panel.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && at) go(at.row);
      const there = visible();
      const next = there[there.indexOf(at) + STEPS[event.key]];
      if (!next) return;
      event.preventDefault();
      at = next;
      pointAt(panel, at);
    });
  }

  // A figure is enlarged by a double click, and by the key z while it has the focus --------------

  for (const panel of panels) {
    const enlarge = () => {
      panel.classList.toggle("large");
      getSelection().removeAllRanges();
      hideCard();
    };
    panel.addEventListener("dblclick", enlarge);
    panel.addEventListener("keydown", (event) => {
      if (event.key === "z") enlarge();
    });
  }

  // Sorting ---------------------------------------------------------------------------------------

  function compare(a, b) {
    if (!a || !b) return 0;
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? collator.compare(a, b) : x - y;
  }

  function sort(head, column) {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const text = (row) => row.cells[column];
    rows.sort((a, b) => !text(a) - !text(b) || (down ? -1 : 1) * compare(text(a), text(b)));
    shown = rows.filter((row) => !row.hidden);
    box.scrollTop = 0;
    fill(0);
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head, column));
    head.replaceChildren(button);
  });

  // A large file is packed in its link; it is unpacked at the first click --------------------------

  for (const link of all("a[data-gzip]")) {
    hide(link.parentElement, false);
    link.href = "#rows";
    link.addEventListener("click", async (event) => {
      if (link.href.startsWith("blob:")) return;
      event.preventDefault();
      const packed = Uint8Array.from(atob(link.dataset.gzip), (c) => c.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const content = await new Response(stream).arrayBuffer();
      link.href = URL.createObjectURL(new Blob([content], { type: "text/csv" }));
      link.click();
    });
  }

  document.getElementById("controls").hidden = false;
  apply();
  aim();
}
