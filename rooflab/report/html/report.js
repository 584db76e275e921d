// Filters, switches, sorting and the card of a point. The table of rows is the only data.
"use strict";
{
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const table = document.querySelector("table.rows");
  const heads = all("th", table);
  const body = table.tBodies[0];
  const rowOf = new Map([...body.rows].map((row) => [row.id, row]));
  const points = all("a.pt");
  const target = (point) => rowOf.get(point.getAttribute("href").slice(1));

  // Filters ---------------------------------------------------------------------------------------

  const filters = all("select[data-filter]").map((select) => {
    const column = heads.findIndex((head) => head.dataset.filter === select.dataset.filter);
    return { select, column };
  });
  const bytes = () => document.querySelector('input[name="bytes"]:checked')?.value ?? "modelled";

  function accepts(row) {
    return filters.every(
      ({ select, column }) => !select.value || row.cells[column].textContent === select.value,
    );
  }

  const hide = (element, hidden) => element.toggleAttribute("hidden", hidden);

  function apply() {
    const counted = bytes() === "counted";
    let shown = 0;
    for (const row of rowOf.values()) {
      hide(row, !accepts(row));
      shown += !row.hidden;
    }
    for (const point of points) {
      const unknown = counted && point.closest("#rooflines") && !point.dataset.counted;
      hide(point, target(point).hidden || unknown);
    }
    for (const line of all("[data-rows]"))
      hide(line, line.dataset.rows.split(" ").some((id) => rowOf.get(id).hidden));
    for (const verdict of all("details[data-row]"))
      hide(verdict, rowOf.get(verdict.dataset.row).hidden);
    const more = document.getElementById("more");
    if (more && filters.some(({ select }) => select.value)) more.open = true;
    for (const panel of all(".panel")) {
      hide(panel, !all("a.pt:not([hidden])", panel).length);
      rove(panel);
    }
    document.getElementById("shown").textContent = `${shown} of ${rowOf.size} rows`;
    hideCard();
  }

  // Switches --------------------------------------------------------------------------------------

  for (const point of points) point.dataset.modelled = point.getAttribute("transform");

  function moveTo(kind) {
    for (const point of points) {
      const { modelled, counted } = point.dataset;
      if (counted)
        point.setAttribute("transform", kind === "counted" ? `translate(${counted})` : modelled);
    }
  }

  for (const box of all("input[data-show]"))
    box.addEventListener("change", () => {
      for (const part of all(`[data-roof="${box.dataset.show}"]`)) hide(part, !box.checked);
    });
  for (const radio of all('input[name="bytes"]'))
    radio.addEventListener("change", () => {
      moveTo(bytes());
      apply();
    });
  for (const { select } of filters) select.addEventListener("change", apply);

  // The card of a point ---------------------------------------------------------------------------

  const card = document.getElementById("card");
  let current = null;

  function showCard(point) {
    hideCard();
    current = point;
    const row = target(point);
    const list = document.createElement("dl");
    heads.forEach((head, i) => {
      const text = row.cells[i].textContent;
      if (!text) return;
      for (const [tag, content] of [["dt", head.textContent], ["dd", text.slice(0, 200)]])
        list.appendChild(document.createElement(tag)).textContent = content;
    });
    card.replaceChildren(list);
    row.classList.add("lit");
    card.hidden = false;
    place();
  }

  // Beside the point; on a narrow screen below it, or where there is room.
  function place() {
    if (!current) return;
    const [at, size] = [current, card].map((element) => element.getBoundingClientRect());
    const right = at.right + 12 + size.width < innerWidth;
    const left = right ? at.right + 12 : Math.max(8, at.left - 12 - size.width);
    const narrow = !right && at.left < size.width + 20;
    const top = narrow && at.bottom + 12 + size.height < innerHeight ? at.bottom + 12 : at.top;
    card.style.left = `${narrow ? 8 : left}px`;
    card.style.top = `${Math.max(8, Math.min(top, innerHeight - size.height - 8))}px`;
  }

  function hideCard() {
    card.hidden = true;
    if (current) target(current).classList.remove("lit");
    current = null;
  }

  // Between points the arrow keys move; a panel has one stop of the Tab key.
  function rove(panel, chosen) {
    const shown = all("a.pt:not([hidden])", panel);
    const stop = chosen ?? shown[0];
    for (const point of all("a.pt", panel))
      point.setAttribute("tabindex", point === stop ? 0 : -1);
  }

  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

  function step(event) {
    const panel = event.currentTarget.closest(".panel");
    const shown = all("a.pt:not([hidden])", panel);
    const next = shown[shown.indexOf(event.currentTarget) + STEPS[event.key]];
    if (!next) return;
    event.preventDefault();
    rove(panel, next);
    next.focus();
  }

  for (const point of points) {
    const title = point.querySelector("title");
    point.setAttribute("aria-label", title.textContent);
    title.remove();
    point.addEventListener("pointerenter", () => showCard(point));
    point.addEventListener("pointerleave", hideCard);
    point.addEventListener("focus", () => showCard(point));
    point.addEventListener("blur", hideCard);
    point.addEventListener("keydown", step);
    point.addEventListener("click", (event) => {
      if (event.pointerType !== "touch") return;
      event.preventDefault(); // a tap shows the card, and does not leave the figure
      showCard(point);
    });
  }
  addEventListener("pointerdown", hideCard);
  addEventListener("scroll", place, { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideCard());

  // Sorting ---------------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });

  function compare(a, b) {
    if (!a || !b) return 0;
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? collator.compare(a, b) : x - y;
  }

  function sort(head, column) {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const text = (row) => row.cells[column].textContent;
    const sorted = [...body.rows].sort(
      (a, b) => !text(a) - !text(b) || (down ? -1 : 1) * compare(text(a), text(b)),
    );
    body.append(...sorted);
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head, column));
    head.replaceChildren(button);
  });

  document.getElementById("controls").hidden = false;
  apply();
}
