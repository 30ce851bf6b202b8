// The script of all pages: local times, forms, live updates and charts. Pages also work without it.
"use strict";
(() => {
  const csrf = document.querySelector("meta[name=csrf]")?.content ?? "";

  // --- times in the local time zone
  const showTimes = (root) => {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const time = new Date(element.dateTime);
      if (!Number.isNaN(time.getTime())) {
        element.title = element.dateTime;
        element.textContent = time.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
      }
    }
  };
  showTimes(document);

  // --- forms: sent in the background; the result is shown in a line of the form
  const showResult = (output, text, kind) => {
    output.textContent = text;
    output.className = `outcome ${kind}`;
  };
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form.op")) return;
    event.preventDefault();
    const button = event.submitter ?? form.querySelector("button");
    const output = form.querySelector(".outcome");
    for (const input of form.querySelectorAll(".wrong")) input.classList.remove("wrong");
    const data = new URLSearchParams(new FormData(form));
    if (button?.name) data.set(button.name, button.value);
    button.disabled = true;
    sending += 1;
    let leaving = false;
    showResult(output, "…", "");
    try {
      const response = await fetch(form.action, {
        method: "POST", body: data, headers: { Accept: "application/json", "X-CSRF-Token": csrf },
      });
      const result = await response.json().catch(() => ({ error: `HTTP status ${response.status}` }));
      if (response.status === 401) {
        location.href = `/login?next=${encodeURIComponent(location.pathname)}`;
      } else if (!response.ok) {
        showResult(output, result.error, "bad");
        if (result.field) {
          const input = form.elements.namedItem(result.field);
          if (input instanceof HTMLElement) { input.classList.add("wrong"); input.focus(); }
        }
      } else {
        form.dispatchEvent(new CustomEvent("done", { bubbles: true, detail: result }));
        if (result.location) {
          leaving = true;
          sessionStorage.setItem("confirmation", result.message ?? "");
          if (result.location === location.pathname + location.search) location.reload();
          else location.href = result.location;
          return;
        }
        showResult(output, result.message ?? "done", "good");
      }
    } catch {
      showResult(output, "the console does not respond", "bad");
    } finally {
      button.disabled = false;
      // Do not refresh a page that is being left: its topic or group may have been deleted.
      if (!leaving) { sending -= 1; refresh(true); }
    }
  });
  const confirmation = document.getElementById("confirmation");
  const storedMessage = sessionStorage.getItem("confirmation");
  if (confirmation && storedMessage) { confirmation.textContent = storedMessage; confirmation.hidden = false; }
  sessionStorage.removeItem("confirmation");

  // --- filter the rows of a table: <input data-filter="id of the table">
  document.addEventListener("input", (event) => {
    const id = event.target.dataset?.filter;
    if (!id) return;
    const word = event.target.value.trim().toLowerCase();
    for (const row of document.querySelectorAll(`#${id} [data-text]`)) {
      row.hidden = !row.dataset.text.toLowerCase().includes(word);
    }
  });

  // --- live updates: load the page again and replace every [data-live] element
  let refreshing = false, repeat = false, sending = 0;
  async function refresh(isRequired = false) {
    if (refreshing) { repeat = repeat || isRequired; return; }
    if (document.hidden || sending || !document.querySelector("[data-live]")) return;
    refreshing = true;
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (response.redirected && new URL(response.url).pathname === "/login") { location.href = response.url; return; }
      const text = await response.text();
      if (sending) return;
      const page = new DOMParser().parseFromString(text, "text/html");
      if (!response.ok !== Boolean(document.getElementById("error"))) { location.reload(); return; }
      for (const element of document.querySelectorAll("[data-live][id]")) update(element, page.getElementById(element.id));
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
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value, unit) => {
    if (value === null || value === undefined) return "–";
    const units = unit === "bytes" ? [" B", " kB", " MB", " GB", " TB"] : ["", " k", " M", " G", " T"];
    let step = 0;
    while (Math.abs(value) >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
    return `${Number(value.toPrecision(3))}${units[step]}`;
  };
  class LiveChart {
    constructor(element) { this.element = element; this.plot = null; this.loading = false; this.load(); }
    async load() {
      if (this.loading || document.hidden) return;
      this.loading = true;
      try {
        const response = await fetch(this.element.dataset.chart, { headers: { Accept: "application/json" } });
        const chart = await response.json();
        if (!response.ok) this.word(chart.error);
        else if (chart.times.length < 2) this.word("Nothing was measured yet: this fills while the page is open.");
        else this.draw(chart);
      } catch { showDisconnected(); } finally { this.loading = false; }
    }
    word(text) {
      this.plot?.destroy(); this.plot = null;
      const line = document.createElement("p");
      line.textContent = text;
      this.element.replaceChildren(line);
    }
    draw(chart) {
      const names = Object.keys(chart.lines);
      const data = [chart.times, ...names.map((name) => chart.lines[name])];
      if (this.plot && this.names === names.join()) { this.plot.setData(data); return; }
      this.plot?.destroy();
      this.element.replaceChildren();
      this.names = names.join();
      const colours = ["--in", "--out", "--third", "--fourth"].map(style);
      const unit = this.element.dataset.unit;
      const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
      this.plot = new uPlot({
        width: this.element.clientWidth, height: 190,
        scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [axis, { ...axis, size: 64, values: (u, ticks) => ticks.map((tick) => short(tick, unit)) }],
        series: [{}, ...names.map((name, i) => ({
          label: name, stroke: colours[i % colours.length], width: 2, points: { show: false },
          value: (u, value) => short(value, unit),
        }))],
      }, data, this.element);
    }
    resize() { this.plot?.setSize({ width: this.element.clientWidth, height: 190 }); }
  }
  const charts = [...document.querySelectorAll("[data-chart]")].map((element) => new LiveChart(element));
  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { for (const chart of charts) chart.resize(); }, 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts) { chart.names = ""; chart.load(); }
  });

  window.kavka = { csrf, refresh, showTimes };
  listen();
})();
