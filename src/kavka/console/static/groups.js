// The preview of an offset reset: shows the plan as a table and fills the form that sets its offsets.
"use strict";
(() => {
  const plan = document.getElementById("plan"), preview = document.getElementById("preview"), set = document.getElementById("set");
  if (!plan) return;
  const { number } = window.kavka.format;
  plan.addEventListener("done", (event) => {
    event.preventDefault();
    const result = event.detail;
    const body = preview.querySelector("tbody");
    body.replaceChildren(...result.rows.map((planned) => {
      const row = document.createElement("tr");
      const change = planned.change === null ? "–" : `${planned.change > 0 ? "+" : ""}${number(planned.change)}`;
      const texts = [planned.topic, planned.partition, number(planned.committed), number(planned.new), change];
      texts.forEach((text, index) => {
        const cell = row.insertCell();
        cell.textContent = text;
        if (index) cell.className = "n";
      });
      return row;
    }));
    document.getElementById("warnings").replaceChildren(...result.warnings.map((text) => {
      const line = document.createElement("li");
      line.textContent = text;
      return line;
    }));
    set.elements.namedItem("offsets").value = result.offsets;
    set.elements.namedItem("seen").value = result.seen;
    set.querySelector(".outcome").textContent = "";
    preview.hidden = false;
  });
  plan.addEventListener("input", () => { preview.hidden = true; });
  document.getElementById("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) { plan.elements.namedItem("file").value = await file.text(); plan.elements.namedItem("way").value = "from-file"; }
  });
})();
