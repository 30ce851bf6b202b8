// The preview of a reset of offsets: shown as a table, and what is shown is what the second form sets.
"use strict";
(() => {
  const plan = document.getElementById("plan"), preview = document.getElementById("preview"), set = document.getElementById("set");
  if (!plan) return;
  const number = new Intl.NumberFormat();
  const shown = (value) => (value === null ? "–" : number.format(value));
  plan.addEventListener("done", (event) => {
    const answer = event.detail;
    const body = preview.querySelector("tbody");
    body.replaceChildren(...answer.rows.map((one) => {
      const row = document.createElement("tr");
      const texts = [one.topic, one.partition, shown(one.committed), shown(one.new), one.change === null ? "–" : `${one.change > 0 ? "+" : ""}${number.format(one.change)}`];
      texts.forEach((text, index) => {
        const cell = row.insertCell();
        cell.textContent = text;
        if (index) cell.className = "n";
      });
      return row;
    }));
    document.getElementById("warnings").replaceChildren(...answer.warnings.map((text) => {
      const line = document.createElement("li");
      line.textContent = text;
      return line;
    }));
    set.elements.namedItem("offsets").value = answer.offsets;
    set.elements.namedItem("seen").value = answer.seen;
    set.querySelector(".answer").textContent = "";
    preview.hidden = false;
  });
  plan.addEventListener("input", () => { preview.hidden = true; });
  document.getElementById("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) { plan.elements.namedItem("file").value = await file.text(); plan.elements.namedItem("way").value = "from-file"; }
  });
})();
