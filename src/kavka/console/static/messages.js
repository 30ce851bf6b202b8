// Shows the results of a message search as they arrive. Data of a topic is only used as text (textContent).
"use strict";
(() => {
  const results = document.getElementById("results");
  const start = document.querySelector("form.search select[name=start]");
  const at = document.querySelector("form.search input[name=at]");
  const updateInput = () => { at.disabled = !["offset", "time"].includes(start.value); };
  start?.addEventListener("change", updateInput);
  if (start) updateInput();
  // Keep empty inputs out of the URL.
  document.querySelector("form.search")?.addEventListener("submit", (event) => {
    for (const input of event.target.querySelectorAll("input, textarea")) if (input.value === "" && !input.required) input.disabled = true;
  });
  window.addEventListener("pageshow", () => {
    for (const input of document.querySelectorAll("form.search input, form.search textarea")) input.disabled = false;
    if (start) updateInput();
  });
  if (!results) return;

  const MAX_ROWS = 2000, MAX_TAILED = 500;
  const rows = document.getElementById("rows"), progress = document.getElementById("progress");
  const notice = document.getElementById("notice"), failed = document.getElementById("failed");
  const stop = document.getElementById("stop"), more = document.getElementById("more");
  const waiting = document.getElementById("waiting");
  const backwards = results.dataset.start === "newest", tail = results.dataset.start === "tail";
  const { number, bytes, date, count } = window.kavka.format;
  let source = null, cursor = "", shown = 0, begun = 0;

  const cell = (row, text, kind) => {
    const added = row.insertCell();
    added.textContent = text;
    if (kind) added.className = kind;
    return added;
  };
  const dataCell = (row, data) => {
    const added = cell(row, "", "data");
    added.dir = "auto";
    if (data.size === null) { added.classList.add("null"); added.textContent = "null"; return; }
    added.textContent = data.cut ? `${data.text}…` : data.text;
    if (data.kind !== "text" || data.problem) {
      const tag = document.createElement("small");
      tag.textContent = ` ${data.kind}`;
      if (data.problem) { tag.title = data.problem; tag.classList.add("warn"); }
      added.append(tag);
    }
  };
  const address = (message) =>
    `${results.dataset.one}?topic=${encodeURIComponent(results.dataset.topic)}&partition=${message.partition}&offset=${message.offset}&${results.dataset.formats}`;
  const build = (message) => {
    const row = document.createElement("tr");
    row.dataset.at = message.timestamp;
    const timeCell = cell(row, "");
    if (message.time) {
      const time = document.createElement("time");
      time.dateTime = message.time;
      time.title = message.time;
      time.textContent = date(message.timestamp, true);
      timeCell.append(time);
    }
    cell(row, message.partition, "n");
    const link = document.createElement("a");
    link.href = address(message);
    link.textContent = number(message.offset);
    cell(row, "", "n").append(link);
    dataCell(row, message.key);
    dataCell(row, message.value);
    cell(row, bytes((message.key.size ?? 0) + (message.value.size ?? 0)), "n");
    if (message.headers.length) {
      const tag = document.createElement("small");
      tag.textContent = ` ${count(message.headers.length, "header")}`;
      tag.title = message.headers.map((header) => `${header.name}: ${header.value.text}`).join("\n");
      row.cells[4].append(tag);
    }
    return row;
  };
  const place = (row) => {
    if (tail) { rows.prepend(row); return; }
    if (!backwards) { rows.append(row); return; }
    let previous = rows.lastElementChild;
    while (previous && Number(previous.dataset.at) < Number(row.dataset.at)) previous = previous.previousElementSibling;
    if (previous) previous.after(row); else rows.prepend(row);
  };
  const showProgress = (data, end) => {
    const total = data.total === null ? "" : ` of ${number(data.total)}`;
    const rate = data.seconds > 0.2 ? `, ${number(Math.round(data.scanned / data.seconds))}/s` : "";
    const dropped = data.dropped ? `, ${number(data.dropped)} not shown, because they arrived too fast` : "";
    const state = end ? (data.done ? (shown ? "That is all" : "Nothing was found") : "There is more") : tail ? "Live" : "Searching";
    progress.textContent = `${state}: ${number(shown)} shown, ${number(data.scanned)}${total} read${rate}${dropped}`;
  };
  const finish = () => { source?.close(); source = null; stop.hidden = true; waiting.hidden = true; };
  const fail = (text) => { finish(); failed.textContent = text; failed.hidden = false; progress.textContent = `Stopped: ${number(shown)} shown`; };

  function search() {
    finish();
    failed.hidden = true; notice.hidden = true; more.hidden = true; stop.hidden = false;
    waiting.hidden = tail || shown > 0;
    const target = new URL(results.dataset.stream, location.href);
    if (cursor) target.searchParams.set("cursor", cursor);
    begun = performance.now();
    source = new EventSource(target);
    source.addEventListener("hits", (event) => {
      waiting.hidden = true;
      for (const message of JSON.parse(event.data)) { place(build(message)); shown += 1; }
      const limit = tail ? MAX_TAILED : MAX_ROWS;
      while (rows.rows.length > limit) (tail ? rows.lastElementChild : rows.firstElementChild).remove();
      results.dataset.first ??= Math.round(performance.now() - begun);
    });
    source.addEventListener("progress", (event) => { const data = JSON.parse(event.data); cursor = data.cursor || cursor; showProgress(data, false); });
    source.addEventListener("notice", (event) => { notice.textContent = JSON.parse(event.data); notice.hidden = false; });
    source.addEventListener("failed", (event) => fail(JSON.parse(event.data)));
    source.addEventListener("end", (event) => {
      const data = JSON.parse(event.data);
      cursor = data.cursor; finish(); showProgress(data, true); more.hidden = data.done;
    });
    source.addEventListener("error", () => { if (source) fail("The console does not respond, or rejected the search."); });
  }
  stop.addEventListener("click", () => { finish(); progress.textContent = `Stopped: ${number(shown)} shown`; more.hidden = tail || !cursor; });
  more.addEventListener("click", search);
  window.addEventListener("pagehide", finish);
  search();
})();
