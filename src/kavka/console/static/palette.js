// The palette (Ctrl-K or /): finds topics, groups, brokers, connectors and pages by name. The server searches, so
// that the names of a large cluster are not part of every page.
"use strict";
(() => {
  const dialog = document.getElementById("palette");
  const input = dialog.querySelector("input"), list = document.getElementById("palette-list");
  const hint = document.getElementById("palette-hint");
  const DELAY_MS = 80;
  let timer = 0, request = 0, controller = null, selected = -1;

  const options = () => [...list.querySelectorAll("[role=option]")];
  const showHint = (text) => { hint.textContent = text; hint.hidden = !text; };
  function select(index) {
    const all = options();
    selected = all.length ? (index + all.length) % all.length : -1;
    all.forEach((option, i) => option.setAttribute("aria-selected", String(i === selected)));
    if (selected >= 0) {
      input.setAttribute("aria-activedescendant", all[selected].id);
      all[selected].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  }
  function show(found) {
    const rows = [];
    let kind = "";
    found.forEach((match, i) => {
      if (match.kind !== kind) {
        kind = match.kind;
        const title = document.createElement("li");
        title.className = "kind"; title.setAttribute("role", "presentation"); title.textContent = kind;
        rows.push(title);
      }
      const option = document.createElement("li");
      option.id = `palette-${i}`; option.setAttribute("role", "option"); option.dataset.location = match.location;
      const name = document.createElement("span");
      name.className = "name"; name.textContent = match.name; name.title = match.name;
      const note = document.createElement("small");
      note.textContent = match.note;
      option.append(window.kavka.icon(match.icon), name, note);
      rows.push(option);
    });
    list.replaceChildren(...rows);
    select(0);
  }
  async function search() {
    const current = ++request;
    controller?.abort();
    controller = new AbortController();
    const query = input.value.trim();
    try {
      const address = `${dialog.dataset.search}?text=${encodeURIComponent(query)}`;
      const response = await fetch(address, { headers: { Accept: "application/json" }, signal: controller.signal });
      const result = await response.json();
      if (current !== request) return;
      if (!response.ok) { list.replaceChildren(); showHint(result.error); return; }
      show(result.matches);
      showHint(result.matches.length ? "" : `Nothing has “${query}” in its name.`);
    } catch (error) {
      if (current === request && error.name !== "AbortError") showHint("The console does not respond.");
    }
  }
  function open() {
    if (dialog.open) return;
    document.getElementById("sidebar").hidePopover?.();
    dialog.showModal();
    input.select();
    search();
  }
  const go = (option) => { if (option) location.href = option.dataset.location; };

  document.addEventListener("keydown", (event) => {
    const isBusy = event.target.closest?.("input, select, textarea") || document.querySelector("dialog[open]");
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (dialog.open) dialog.close(); else open();
    } else if (event.key === "/" && isPlain && !isBusy) {
      event.preventDefault();
      open();
    }
  });
  for (const button of document.querySelectorAll("[data-palette]")) button.addEventListener("click", open);
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, DELAY_MS); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); select(selected + 1); }
    else if (event.key === "ArrowUp") { event.preventDefault(); select(selected - 1); }
    else if (event.key === "Enter") { event.preventDefault(); go(options()[selected]); }
  });
  list.addEventListener("mousemove", (event) => {
    const index = options().indexOf(event.target.closest("[role=option]"));
    if (index >= 0 && index !== selected) select(index);
  });
  list.addEventListener("click", (event) => go(event.target.closest("[role=option]")));
})();
