"use strict";
// Controls for a page that is complete without them: sorting, filtering, tips, switching series.
(() => {
  const MOST_ROWS = 100; // as in table.py
  const FEWEST_ROWS = 6; // a shorter table needs no filter
  const collator = new Intl.Collator("en", { numeric: true });

  function make(tag, attributes = {}, text = "") {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  }

  function count(number, noun) {
    return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  }

  const splitWords = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  const hasAll = (text, words) => words.every((word) => text.includes(word));

  function makeFilter(label, filter) {
    const box = make("label", {}, `${label} `);
    const input = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    box.append(input);
    let waiting = 0; // a fast typist waits for one answer only
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => filter(splitWords(input.value)), 60);
    });
    return box;
  }

  // Tables

  class Table {
    constructor(table) {
      this.block = table.closest(".block");
      this.title = this.block.querySelector("h3").textContent;
      this.table = table;
      this.groups = [...table.tBodies];
      this.homes = new Map();
      for (const group of this.groups) for (const row of group.rows) this.homes.set(row, group);
      this.rows = [...this.homes.keys()];
      this.order = this.rows;
      this.matches = this.rows;
      this.isSorted = false;
      this.isWhole = false;
      for (const row of this.rows) row.classList.remove("rest");
      this.show();
      this.texts = null;
      this.words = [];
      this.heads = [...table.tHead.rows[0].cells];
      this.heads.forEach((head, place) => this.makeSortable(head, place));
      this.makeControls();
    }

    makeSortable(head, place) {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => this.sort(head, place));
    }

    makeControls() {
      if (this.rows.length < FEWEST_ROWS) return;
      const controls = make("div", { class: "controls" });
      const label = "Filter this table";
      this.shown = make("output", {}, count(this.rows.length, "row"));
      this.more = make("button", { type: "button", class: "more" });
      this.more.addEventListener("click", () => {
        this.isWhole = true;
        this.update();
      });
      controls.append(
        makeFilter(label, (words) => {
          this.words = words;
          this.update();
        }),
        this.shown,
        this.more,
      );
      this.table.closest(".box").before(controls);
      this.tell(this.rows.length);
    }

    readTexts() {
      if (this.texts !== null) return;
      const title = this.title.toLowerCase();
      this.texts = new Map(
        this.rows.map((row) => {
          const cells = Array.from(row.cells, (cell) => cell.textContent);
          return [row, `${title} ${cells.join(" ").toLowerCase()}`];
        }),
      );
    }

    // Up, down, then back to groups.
    sort(head, place) {
      const next = { ascending: "descending", descending: null };
      const before = head.getAttribute("aria-sort");
      const direction = before === null ? "ascending" : next[before];
      for (const other of this.heads) other.removeAttribute("aria-sort");
      this.isSorted = direction !== null;
      this.order = this.rows;
      if (this.isSorted) {
        head.setAttribute("aria-sort", direction);
        this.order = sortRows(this.rows, place, direction === "ascending" ? 1 : -1);
      }
      this.update();
    }

    update() {
      const words = [...pageWords, ...this.words];
      if (words.length) this.readTexts();
      this.matches = words.length
        ? this.order.filter((row) => hasAll(this.texts.get(row), words))
        : this.order;
      this.show();
      this.tell(this.matches.length);
      this.block.classList.toggle("out", !this.matches.length && pageWords.length > 0);
      for (const plot of this.block.querySelectorAll("figure svg")) this.fade(plot, words);
      return this.matches.length;
    }

    // Tips tell less than rows: a plot of which nothing would be left stays as it is.
    fade(plot, words) {
      const marks = [...plot.querySelectorAll(".mark[data-tip]")];
      const title = this.title.toLowerCase();
      const fitting = new Set(
        marks.filter((mark) => hasAll(`${title} ${mark.dataset.tip.toLowerCase()}`, words)),
      );
      for (const mark of marks) {
        mark.classList.toggle("faded", fitting.size > 0 && !fitting.has(mark));
      }
    }

    // Only what is to be seen is in the document: browsers are slow with long tables.
    show(isPrinted = false) {
      const most = this.isWhole || isPrinted ? Infinity : MOST_ROWS;
      const parts = new Map(this.groups.map((group) => [group, document.createDocumentFragment()]));
      this.matches.forEach((row, place) => {
        if (place < most) parts.get(this.isSorted ? this.groups[0] : this.homes.get(row)).append(row);
      });
      for (const [group, part] of parts) group.replaceChildren(part);
    }

    tell(matches) {
      if (!this.shown) return;
      const all = count(this.rows.length, "row");
      const left = this.isWhole ? 0 : matches - MOST_ROWS;
      const first = left > 0 ? `the first ${MOST_ROWS} of ` : "";
      const of = matches === this.rows.length ? all : `${matches.toLocaleString("en")} of ${all}`;
      this.shown.textContent = first + of;
      this.more.textContent = left > 0 ? `show ${matches.toLocaleString("en")}` : "";
    }
  }

  // By raw values where there are any; what is empty comes last, whatever the direction.
  function sortRows(rows, place, sign) {
    const keys = new Map(
      rows.map((row) => {
        const cell = row.cells[place];
        return [row, "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent];
      }),
    );
    const isEmpty = (key) => key === "" || Number.isNaN(key);
    const compareKeys = (a, b) => {
      if (typeof a === "number" && typeof b === "number") return a - b;
      // A column of numbers says in a word what has none: "oom".
      if (typeof a !== typeof b) return typeof a === "number" ? -sign : sign;
      return collator.compare(a, b);
    };
    return [...rows].sort((left, right) => {
      const [a, b] = [keys.get(left), keys.get(right)];
      if (isEmpty(a) || isEmpty(b)) return isEmpty(a) - isEmpty(b);
      return sign * compareKeys(a, b);
    });
  }

  let pageWords = [];
  const tables = Array.from(document.querySelectorAll("table.sheet"), (table) => new Table(table));

  function makePageFilter() {
    const total = tables.reduce((sum, table) => sum + table.rows.length, 0);
    if (total < FEWEST_ROWS) return;
    const controls = make("div", { class: "controls page-filter", role: "search" });
    const found = make("output");
    const filter = makeFilter("Filter all tables", (words) => {
      pageWords = words;
      const matches = tables.reduce((sum, table) => sum + table.update(), 0);
      for (const suite of document.querySelectorAll(".suite")) {
        suite.classList.toggle("out", !suite.querySelector(".block:not(.out)"));
      }
      found.textContent = words.length
        ? `${matches.toLocaleString("en")} of ${count(total, "row")}`
        : "";
    });
    controls.append(filter, found);
    document.querySelector(".suite").before(controls);
  }

  // Lists of which only the first lines are shown.
  function makeLists() {
    for (const list of document.querySelectorAll("ul:has(> .rest)")) {
      const late = list.querySelectorAll(":scope > .rest");
      const more = make("button", { type: "button", class: "more" }, `show ${late.length} more`);
      more.addEventListener("click", () => {
        for (const item of late) item.classList.remove("rest");
        more.remove();
      });
      list.after(more);
    }
  }

  // Plots

  const tip = make("div", { class: "tip", role: "status" });
  tip.hidden = true;
  document.body.append(tip);

  function showTip(mark, x, y) {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, x + 12), innerWidth - width - 4);
    const top = y + 16 + height < innerHeight ? y + 16 : y - height - 12;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  function showTipBeside(mark) {
    const place = mark.getBoundingClientRect();
    showTip(mark, place.left + place.width / 2, place.top + place.height / 2);
  }

  const hideTip = () => {
    tip.hidden = true;
  };

  function findMark(event) {
    return event.target instanceof Element ? event.target.closest(".mark[data-tip]") : null;
  }

  for (const kind of ["pointerover", "pointermove", "pointerdown"]) {
    document.addEventListener(kind, (event) => {
      const mark = findMark(event);
      if (mark) showTip(mark, event.clientX, event.clientY);
      else if (kind !== "pointermove") hideTip();
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });
  document.addEventListener("scroll", hideTip, { capture: true, passive: true });

  // One stop for the Tab key a plot; arrows go from mark to mark.
  function makeWalkable(plot) {
    const listMarks = () => [...plot.querySelectorAll(".mark[data-tip]:not(.off, .faded)")];
    if (!listMarks().length) return;
    let current = null;
    plot.setAttribute("tabindex", "0");
    plot.setAttribute("role", "group"); // an image has no parts that one could go to
    const go = (step) => {
      const marks = listMarks();
      if (!marks.length) return;
      const place = marks.indexOf(current);
      current = marks[place < 0 ? 0 : (place + step + marks.length) % marks.length];
      showTipBeside(current);
    };
    plot.addEventListener("focus", () => {
      if (plot.matches(":focus-visible")) go(0);
    });
    plot.addEventListener("blur", hideTip);
    plot.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.target !== plot || !(event.key in steps)) return;
      event.preventDefault();
      go(steps[event.key]);
    });
  }

  function makeSwitches(plot) {
    const names = [...plot.querySelectorAll(".name[data-series]")];
    if (names.length < 2) return;
    for (const name of names) {
      name.setAttribute("role", "button");
      name.setAttribute("tabindex", "0");
      name.setAttribute("aria-pressed", "true");
      const turn = () => {
        const isOn = name.getAttribute("aria-pressed") === "false";
        const number = CSS.escape(name.dataset.series);
        for (const part of plot.querySelectorAll(`[data-series="${number}"]`)) {
          part.classList.toggle("off", !isOn);
          if (part.hasAttribute("aria-pressed")) part.setAttribute("aria-pressed", String(isOn));
        }
        hideTip();
      };
      name.addEventListener("click", turn);
      name.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        turn();
      });
    }
  }

  addEventListener("beforeprint", () => tables.forEach((table) => table.show(true)));
  addEventListener("afterprint", () => tables.forEach((table) => table.show()));
  // While nobody waits for it, so that the first filter is as quick as the second.
  const whenIdle = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 200));
  for (const table of tables) whenIdle(() => table.readTexts());
  makePageFilter();
  makeLists();
  for (const plot of document.querySelectorAll("figure svg")) {
    makeWalkable(plot);
    makeSwitches(plot);
  }
})();
