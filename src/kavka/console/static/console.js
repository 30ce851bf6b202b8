// The script of all pages: local times, theme, toasts, forms, live updates and charts. Pages also work without it.
"use strict";
(() => {
  const csrf = document.querySelector("meta[name=csrf]")?.content ?? "";
  const format = window.kavka.format;

  // --- times in the local time zone
  const showTimes = (root) => {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const time = new Date(element.dateTime);
      if (!Number.isNaN(time.getTime())) {
        element.title = element.dateTime;
        element.textContent = format.date(time);
      }
    }
  };
  showTimes(document);

  // A table that scrolls sideways can be scrolled with the keyboard.
  const focusScrolling = (root) => {
    for (const element of root.querySelectorAll(".scroll")) {
      if (element.scrollWidth > element.clientWidth) element.tabIndex = 0; else element.removeAttribute("tabindex");
    }
  };
  focusScrolling(document);

  // --- theme: "" is that of the system
  const themes = [...document.querySelectorAll("[data-theme-choice]")];
  const root = document.documentElement;
  const showTheme = () => {
    const theme = root.dataset.theme ?? "";
    for (const button of themes) button.setAttribute("aria-pressed", String(button.dataset.themeChoice === theme));
  };
  for (const button of themes) {
    button.addEventListener("click", () => {
      const theme = button.dataset.themeChoice;
      if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
      try {
        if (theme) localStorage.setItem("kavka-theme", theme); else localStorage.removeItem("kavka-theme");
      } catch { /* Storage is disabled: the choice is not remembered. */ }
      showTheme();
      redrawCharts();
    });
  }
  showTheme();

  // --- symbols and toasts
  const icon = (name) => {
    const symbol = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    symbol.setAttribute("class", "icon");
    symbol.setAttribute("aria-hidden", "true");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    use.setAttribute("href", `${document.body.dataset.icons}#${name}`);
    symbol.append(use);
    return symbol;
  };
  const TOAST_MS = 6000, MAX_TOASTS = 4;
  const toasts = document.getElementById("toasts");
  // The region is in the top layer, so that toasts are above an open dialog.
  const raiseToasts = () => {
    if (!toasts.showPopover) return;
    if (toasts.matches(":popover-open")) toasts.hidePopover();
    toasts.showPopover();
  };
  function equip(toast) {
    const close = document.createElement("button");
    close.type = "button"; close.className = "ghost"; close.setAttribute("aria-label", "Close the message");
    close.append(icon("x"));
    close.addEventListener("click", () => toast.remove());
    toast.append(close);
    // A message stays while the pointer is on it or the keyboard is in it.
    const expire = () => { if (toast.matches(":hover, :focus-within")) setTimeout(expire, 1000); else toast.remove(); };
    if (toast.classList.contains("good")) setTimeout(expire, TOAST_MS);
  }
  function showToast(text, kind = "good") {
    const toast = document.createElement("div");
    toast.className = `toast ${kind}`;
    const line = document.createElement("span");
    line.textContent = text;
    toast.append(icon(kind === "good" ? "circle-check" : "circle-alert"), line);
    equip(toast);
    toasts.append(toast);
    while (toasts.children.length > MAX_TOASTS) toasts.firstElementChild.remove();
    raiseToasts();
  }
  for (const toast of toasts.children) equip(toast);
  const storedMessage = sessionStorage.getItem("message");
  sessionStorage.removeItem("message");
  if (storedMessage) showToast(storedMessage);

  // --- dialogs: opened by their buttons (command="show-modal"), which older browsers do not know
  if (!("commandForElement" in HTMLButtonElement.prototype)) {
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button[command=show-modal]");
      if (button) document.getElementById(button.getAttribute("commandfor"))?.showModal();
    });
  }
  // A click on the backdrop closes a dialog without inputs; a form could be lost by an accident.
  document.addEventListener("click", (event) => {
    if (event.target instanceof HTMLDialogElement && !event.target.querySelector("form.op")) event.target.close();
    const chooser = document.querySelector("details.chooser[open]");
    if (chooser && !chooser.contains(event.target)) chooser.open = false;
  });

  // --- copy a text: <button data-copy="id">. Without access to the clipboard, the text is selected.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      showToast("Copied");
    } catch {
      getSelection().selectAllChildren(text);
    }
  });

  // --- forms: sent in the background; success is shown as a toast, an error in the form
  const showError = (output, text) => {
    output.textContent = text;
    output.className = text ? "outcome bad" : "outcome";
  };
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form.op")) return;
    event.preventDefault();
    const button = event.submitter ?? form.querySelector("button");
    const output = form.querySelector(".outcome");
    for (const input of form.querySelectorAll(".wrong")) input.classList.remove("wrong");
    for (const line of form.querySelectorAll(".field-error")) line.remove();
    const data = new URLSearchParams(new FormData(form));
    if (button?.name) data.set(button.name, button.value);
    button.disabled = true;
    button.classList.add("busy");
    sending += 1;
    let leaving = false;
    showError(output, "");
    try {
      const action = button?.hasAttribute("formaction") ? button.formAction : form.action;
      const response = await fetch(action, {
        method: "POST", body: data, headers: { Accept: "application/json", "X-CSRF-Token": csrf },
      });
      const result = await response.json().catch(() => ({ error: `HTTP status ${response.status}` }));
      if (response.status === 401) {
        location.reload();
      } else if (!response.ok) {
        showError(output, result.error);
        const wrong = result.field ? { [result.field]: "", ...result.fields } : result.fields ?? {};
        const inputs = Object.keys(wrong).map((name) => form.elements.namedItem(name)).filter((input) => input instanceof HTMLElement);
        for (const input of inputs) {
          input.classList.add("wrong");
          const details = input.closest("details");
          if (details) details.open = true;
          if (wrong[input.name]) {
            const line = document.createElement("small");
            line.className = "field-error";
            line.textContent = wrong[input.name];
            input.after(line);
          }
        }
        inputs[0]?.focus();
      } else {
        const isDone = form.dispatchEvent(new CustomEvent("done", { bubbles: true, cancelable: true, detail: result }));
        if (result.location) {
          leaving = true;
          sessionStorage.setItem("message", result.message ?? "");
          if (result.location === location.pathname + location.search) location.reload();
          else location.href = result.location;
          return;
        }
        // A script that shows the result in the dialog prevents the default.
        if (isDone) form.closest("dialog")?.close();
        showToast(result.message ?? "Done");
      }
    } catch {
      showError(output, "the console does not respond");
    } finally {
      button.disabled = false;
      button.classList.remove("busy");
      // Do not refresh a page that is being left: its topic or group may have been deleted.
      if (!leaving) { sending -= 1; refresh(true); }
    }
  });

  // --- filter the rows of a table: <input data-filter="id of the table">
  document.addEventListener("input", (event) => {
    const id = event.target.dataset?.filter;
    if (!id) return;
    const word = event.target.value.trim().toLowerCase();
    for (const row of document.querySelectorAll(`#${id} [data-text]`)) {
      row.hidden = !row.dataset.text.toLowerCase().includes(word);
    }
  });

  // --- suggestions: <datalist data-suggest="address of the search" data-kind="Topics">
  for (const suggestions of document.querySelectorAll("datalist[data-suggest]")) {
    let timer = 0;
    const suggest = async (text) => {
      const response = await fetch(`${suggestions.dataset.suggest}?text=${encodeURIComponent(text)}`);
      if (!response.ok) return;
      const matches = (await response.json()).matches.filter((match) => match.kind === suggestions.dataset.kind);
      suggestions.replaceChildren(...matches.map((match) => new Option(match.name, match.name)));
    };
    document.addEventListener("input", (event) => {
      if (event.target.list !== suggestions) return;
      clearTimeout(timer);
      timer = setTimeout(() => suggest(event.target.value.trim()).catch(() => {}), 150);
    });
  }

  // --- live updates: load the page again and replace every [data-live] element
  let refreshing = false, repeat = false, sending = 0;
  async function refresh(isRequired = false) {
    if (refreshing) { repeat = repeat || isRequired; return; }
    if (document.hidden || sending || !document.querySelector("[data-live]")) return;
    refreshing = true;
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (response.redirected && new URL(response.url).pathname.endsWith("/login")) { location.href = response.url; return; }
      const text = await response.text();
      if (sending) return;
      const page = new DOMParser().parseFromString(text, "text/html");
      if (!response.ok !== Boolean(document.getElementById("error"))) { location.reload(); return; }
      for (const element of document.querySelectorAll("[data-live][id]")) {
        update(element, page.getElementById(element.id));
      }
    } catch { showDisconnected(); } finally {
      refreshing = false;
      if (repeat) { repeat = false; refresh(); }
    }
  }
  // Replaces the content of an element, and keeps the focus, open details and scroll positions.
  function update(element, replacement) {
    if (!replacement || element.dataset.html === replacement.innerHTML) return;
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input, select, textarea")) return;
    const html = replacement.innerHTML;
    const focusIndex = focused ? [...element.querySelectorAll("a, button, summary")].indexOf(focused) : -1;
    const open = [...element.querySelectorAll("details")].map((d) => d.open);
    const scrolled = [...element.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    element.replaceChildren(...replacement.childNodes);
    element.dataset.html = html;
    showTimes(element);
    focusScrolling(element);
    if (open.length) element.querySelectorAll("details").forEach((d, i) => { if (i < open.length) d.open = open[i]; });
    element.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolled[i] ?? 0; });
    if (focusIndex >= 0) element.querySelectorAll("a, button, summary")[focusIndex]?.focus();
  }
  function showDisconnected() {
    const strip = document.getElementById("strip");
    if (strip && !document.getElementById("lost")) {
      const line = document.createElement("p");
      line.id = "lost"; line.className = "strip bad"; line.setAttribute("role", "alert");
      line.textContent = "The console does not respond. The page shows old data.";
      strip.after(line);
    }
  }

  // --- events: only while the page is visible
  let source = null;
  function listen() {
    const address = document.body.dataset.events;
    if (!address || source || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("sample", () => { refresh(); for (const chart of charts) chart.load(); });
    source.addEventListener("open", () => document.getElementById("lost")?.remove());
    source.addEventListener("error", showDisconnected);
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else { listen(); refresh(); }
  });
  window.addEventListener("pagehide", () => source?.close());

  // --- charts
  // Colours of the theme, resolved: a canvas does not know light-dark().
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => { probe.style.color = `var(${name})`; return getComputedStyle(probe).color; };
  const UNITS = { number: format.compact, rate: format.compact, bytes: format.bytes, duration: format.duration };
  const VALUES = { number: format.number, rate: format.rate, bytes: format.bytes, duration: format.duration };
  const SERIES = ["--chart-1", "--chart-2", "--chart-3", "--chart-4", "--chart-5", "--chart-6"];
  const HEIGHT = 190;
  class LiveChart {
    constructor(element) { this.element = element; this.plot = null; this.loading = false; this.load(); }
    async load() {
      if (this.loading || document.hidden) return;
      this.loading = true;
      try {
        const response = await fetch(this.element.dataset.chart, { headers: { Accept: "application/json" } });
        const chart = await response.json();
        if (!response.ok) this.showText(chart.error);
        else if (chart.times.length < 2) this.showText("No samples yet. The chart fills while the console runs.");
        else this.draw(chart);
      } catch { showDisconnected(); } finally { this.loading = false; }
    }
    showText(text) {
      this.plot?.destroy(); this.plot = null;
      const line = document.createElement("p");
      line.textContent = text;
      this.element.replaceChildren(line);
    }
    draw(chart) {
      const names = Object.keys(chart.lines);
      const data = [chart.times, ...names.map((name) => chart.lines[name])];
      if (this.plot && this.names === names.join()) { this.plot.setData(data); this.showLast(); return; }
      this.plot?.destroy();
      this.element.replaceChildren();
      this.names = names.join();
      const unit = this.element.dataset.unit;
      const font = `11px ${getComputedStyle(document.body).fontFamily}`;
      const line = colour("--line");
      const stroke = colour("--soft");
      const axis = { stroke, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, size: 4 } };
      const tickTime = (tick, increment) => {
        const text = format.date(tick * 1000);
        return increment >= 86400 ? text.slice(5, 10) : increment >= 60 ? text.slice(11, 16) : text.slice(11);
      };
      const time = { label: "time", value: (u, value) => (value === null ? "–" : format.date(value * 1000)) };
      this.plot = new uPlot({
        width: this.element.clientWidth, height: HEIGHT,
        cursor: { y: false, points: { size: 7 } },
        scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [
          {
            ...axis, grid: { show: false }, space: 70,
            values: (u, ticks, index, space, increment) => ticks.map((tick) => tickTime(tick, increment)),
          },
          { ...axis, size: 60, values: (u, ticks) => ticks.map((tick) => (UNITS[unit] ?? UNITS.number)(tick)) },
        ],
        series: [time, ...names.map((name, i) => ({
          label: name, stroke: colour(SERIES[i % SERIES.length]), width: 1.75, points: { show: false },
          fill: names.length === 1 ? colour("--accent-back") : undefined,
          value: (u, value) => (VALUES[unit] ?? VALUES.number)(value),
        }))],
      }, data, this.element);
      this.plot.over.addEventListener("mouseleave", () => this.showLast());
      this.showLast();
    }
    // Without the pointer on the chart, the legend has the last values. uPlot draws after the current task.
    showLast() {
      setTimeout(() => {
        if (this.plot && !this.plot.over.matches(":hover")) this.plot.setLegend({ idx: this.plot.data[0].length - 1 });
      });
    }
    resize() { this.plot?.setSize({ width: this.element.clientWidth, height: HEIGHT }); }
  }
  const charts = [...document.querySelectorAll("[data-chart]")].map((element) => new LiveChart(element));
  function redrawCharts() { for (const chart of charts) { chart.names = ""; chart.load(); } }
  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { focusScrolling(document); for (const chart of charts) chart.resize(); }, 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);

  Object.assign(window.kavka, { csrf, refresh, showTimes, showToast, icon, colour });
  listen();
})();
