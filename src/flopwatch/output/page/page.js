"use strict";
// Controls for tables that are complete without them (sorting, filtering, columns), and plots.
(() => {
  const MOST_ROWS = 100; // as in table_markup.py
  const FEWEST_ROWS = 6; // a shorter table needs no filter
  const phone = matchMedia("(max-width: 40rem)");
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
      this.title = table.caption.textContent;
      this.table = table;
      // The plot of a suite's headline belongs to its first table.
      const suite = this.block.closest(".suite");
      const isFirst = suite?.querySelector(".block") === this.block;
      this.figures = [
        ...this.block.querySelectorAll("figure.plot"),
        ...(isFirst ? suite.querySelectorAll("figure.hero") : []),
      ];
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
      this.heads.forEach((head, place) => {
        // On a phone the speedup comes before the width of the time's interval.
        if (phone.matches && head.textContent === "±") table.classList.add(`h${place + 1}`);
        this.makeSortable(head, place);
      });
      this.makeControls();
    }

    makeSortable(head, place) {
      const button = make("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => this.sort(head, place));
    }

    makeControls() {
      const controls = make("div", { class: "controls" });
      if (this.rows.length >= FEWEST_ROWS) this.addFilter(controls);
      if ([...this.table.classList].some((name) => /^h\d+$/.test(name))) this.addColumns(controls);
      if (controls.childElementCount) this.table.closest(".box").before(controls);
    }

    // A class of the table hides a column: page.css has a line for each.
    addColumns(controls) {
      const menu = make("details", { class: "columns" });
      const summary = make("summary");
      const choices = make("fieldset", { "aria-label": `Columns of ${this.title}` });
      const isShown = (place) => !this.table.classList.contains(`h${place + 1}`);
      const tell = () => {
        const shown = this.heads.filter((_, place) => isShown(place)).length;
        summary.textContent = `Columns: ${shown} of ${this.heads.length}`;
      };
      this.heads.forEach((head, place) => {
        const label = make("label");
        const box = make("input", { type: "checkbox" });
        box.checked = isShown(place);
        box.addEventListener("change", () => {
          this.table.classList.toggle(`h${place + 1}`, !box.checked);
          tell();
        });
        label.append(box, ` ${head.textContent}`);
        label.title = head.title;
        choices.append(label);
      });
      tell();
      menu.append(summary, choices);
      menu.addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        menu.open = false;
        summary.focus();
      });
      controls.append(menu);
    }

    addFilter(controls) {
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
      this.showCount(this.rows.length);
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
      this.showCount(this.matches.length);
      this.block.classList.toggle("out", !this.matches.length && pageWords.length > 0);
      for (const figure of this.figures) {
        figure.wanted = { title: this.title.toLowerCase(), words };
        fade(figure);
      }
      return this.matches.length;
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

    showCount(matches) {
      if (!this.shown) return;
      const all = count(this.rows.length, "row");
      const left = this.isWhole ? 0 : matches - MOST_ROWS;
      const first = left > 0 ? `the first ${MOST_ROWS} of ` : "";
      const of = matches === this.rows.length ? all : `${matches.toLocaleString("en")} of ${all}`;
      this.shown.textContent = first + of;
      this.more.textContent = left > 0 ? `show ${matches.toLocaleString("en")}` : "";
      this.more.hidden = left <= 0;
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
    filter.querySelector("input").placeholder = "Filter all tables";
    controls.append(filter, found);
    document.querySelector(".side").append(controls);
  }

  // Which section is in sight.
  function markSections() {
    const links = new Map(
      Array.from(document.querySelectorAll("nav a"), (link) => [link.hash.slice(1), link]),
    );
    const seen = new Set();
    const watcher = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries) {
          if (isIntersecting) seen.add(target.id);
          else seen.delete(target.id);
        }
        const current = [...links.keys()].find((name) => seen.has(name));
        for (const [name, link] of links) {
          if (name === current) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }
      },
      { rootMargin: "-10% 0px -70% 0px" },
    );
    for (const name of links.keys()) watcher.observe(document.getElementById(name));
  }

  // A link into what is folded opens it, and paper has no folds but those of environments.
  function openAround(element) {
    for (let fold = element?.closest("details"); fold; fold = fold.parentElement.closest("details")) {
      fold.open = true;
    }
  }
  addEventListener("hashchange", () => openAround(document.getElementById(location.hash.slice(1))));
  document.addEventListener("click", ({ target }) => {
    for (const menu of document.querySelectorAll("details.columns[open]")) {
      if (!menu.contains(target)) menu.open = false;
    }
    const name = target.closest?.("nav a")?.hash.slice(1);
    const fold = name && document.querySelector(`#${name} > details.folded`);
    if (fold) fold.open = true;
  });
  const unfolded = [];
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("main details:not([open], .columns, #runs *)")) {
      fold.open = true;
      unfolded.push(fold);
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of unfolded.splice(0)) fold.open = false;
  });

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

  // Plots: specifications that Vega draws, those in sight first.

  const tip = make("div", { class: "tip", role: "status" });
  tip.hidden = true;
  document.body.append(tip);

  function showTip(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, x + 12), innerWidth - width - 4);
    const top = y + 16 + height < innerHeight ? y + 16 : y - height - 12;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  const hideTip = () => {
    tip.hidden = true;
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });
  document.addEventListener("scroll", hideTip, { capture: true, passive: true });

  const figures = [...document.querySelectorAll("figure.plot")];
  const readJson = (parent, name) =>
    JSON.parse(parent.querySelector(`script[data-name="${name}"]`).textContent);
  const theme = figures.length ? readJson(document, "theme") : null;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const FILE_LEGEND = 560; // the width for which legends have their columns, as in channels.py
  const narrow = matchMedia("(max-width: 600px)");

  // A specification is for paper of a file's width: in the dark its colours are others, and where
  // there is little room its legends stand above, in fewer columns.
  function adapt(node, isDark, width) {
    if (typeof node === "string") {
      return isDark && Object.hasOwn(theme.colours, node) ? theme.colours[node] : node;
    }
    if (node === null || typeof node !== "object") return node;
    if (Array.isArray(node)) return node.map((part) => adapt(part, isDark, width));
    const adapted = {};
    for (const [key, part] of Object.entries(node)) {
      const isData = key === "datasets" || key === "domain";
      adapted[key] = isData ? part : adapt(part, isDark, width);
    }
    if (narrow.matches && adapted.orient === "right") adapted.orient = "top";
    if (adapted.orient === "top" && adapted.columns) {
      adapted.columns = Math.max(1, Math.floor((adapted.columns * (width - 120)) / FILE_LEGEND));
    }
    return adapted;
  }

  // Names lose their middle: variants often differ at the end.
  function shorten(name, most) {
    const half = Math.max(5, Math.floor(most / 2));
    return name.length <= 2 * half ? name : `${name.slice(0, half - 1)}…${name.slice(-half)}`;
  }

  function draw(figure, isPrinted = false) {
    const box = figure.querySelector(".drawing");
    figure.view?.finalize();
    box.replaceChildren();
    const isDark = dark.matches && !isPrinted;
    const width = box.clientWidth;
    const spec = adapt(readJson(figure, ""), isDark, width);
    const { lanes = [], headings = [] } = spec.datasets;
    for (const lane of lanes) lane.text = shorten(lane.text, width / 18);
    for (const heading of headings) heading.text = shorten(heading.text, width / 11);
    // Words in bars were chosen for a wide plot.
    if (width < 480) spec.layer = spec.layer.filter((layer) => layer.mark.style !== "inside");
    const { spec: compiled } = vegaLite.compile(spec, { config: isDark ? theme.dark : theme.light });
    // Expressions are interpreted: the page's policy allows no script made of text.
    figure.view = new vega.View(vega.parse(compiled, {}, { ast: true }), {
      expr: vega.expressionInterpreter,
      renderer: "svg",
      container: box,
      tooltip: (_, event, item, text) => {
        if (text) showTip(text, event.clientX, event.clientY);
        else hideTip();
      },
    }).run();
    makeWalkable(figure, box.querySelector("svg"));
    // A plot that is fitted to its width draws its parts anew.
    const prepare = () => {
      markSwitches(box);
      fade(figure);
    };
    figure.view.addResizeListener(() => figure.view.runAsync().then(prepare));
    figure.view.runAsync().then(prepare);
  }

  // What Vega has drawn with a tip: the elements have their items.
  const listMarks = (figure) =>
    [...figure.querySelectorAll(".drawing svg *")].filter((mark) => mark.__data__?.tooltip);

  // Tips say less than rows: a plot of which nothing would be left stays as it is.
  function fade(figure) {
    if (!figure.view || !figure.wanted) return;
    const { title, words } = figure.wanted;
    const marks = listMarks(figure);
    const fits = (mark) => hasAll(`${title} ${mark.__data__.tooltip.toLowerCase()}`, words);
    const fitting = new Set(marks.filter(fits));
    for (const mark of marks) {
      mark.classList.toggle("faded", fitting.size > 0 && !fitting.has(mark));
    }
  }

  // One stop for the Tab key a plot; arrows go from mark to mark.
  function makeWalkable(figure, plot) {
    let current = null;
    plot.setAttribute("tabindex", "0");
    const go = (step) => {
      const marks = listMarks(figure).filter((mark) => !mark.classList.contains("faded"));
      if (!marks.length) return;
      const place = marks.indexOf(current);
      current = marks[place < 0 ? 0 : (place + step + marks.length) % marks.length];
      const { left, top, width, height } = current.getBoundingClientRect();
      showTip(current.__data__.tooltip, left + width / 2, top + height / 2);
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

  // Names in a legend are switches; Vega knows clicks only.
  const SWITCH = ".role-legend-label text";

  function markSwitches(box) {
    // What Vega calls a symbol has no parts for a screen reader, and needs a name.
    for (const legend of box.querySelectorAll(".role-legend")) legend.setAttribute("role", "group");
    for (const nameless of box.querySelectorAll("[role=graphics-symbol]:not([aria-label])")) {
      nameless.removeAttribute("role");
      nameless.removeAttribute("aria-roledescription");
    }
    for (const name of box.querySelectorAll(SWITCH)) {
      name.setAttribute("role", "button");
      name.setAttribute("tabindex", "0");
    }
  }

  document.addEventListener("keydown", (event) => {
    if (!event.target.matches(SWITCH) || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  });

  const sight = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        sight.unobserve(target);
        draw(target);
      }
    },
    { rootMargin: "400px" },
  );
  const redraw = () => figures.filter((figure) => figure.view).forEach((figure) => draw(figure));
  for (const media of [dark, narrow]) media.addEventListener("change", redraw);
  addEventListener("beforeprint", () => figures.forEach((figure) => draw(figure, true)));
  addEventListener("afterprint", redraw);

  addEventListener("beforeprint", () => tables.forEach((table) => table.show(true)));
  addEventListener("afterprint", () => tables.forEach((table) => table.show()));
  // While nobody waits for it, so that the first filter is as quick as the second.
  const whenIdle = globalThis.requestIdleCallback ?? ((work) => setTimeout(work, 200));
  for (const table of tables) whenIdle(() => table.readTexts());
  makePageFilter();
  makeLists();
  markSections();
  for (const figure of figures) sight.observe(figure);
})();
