// Applies the stored theme before the first paint: "light", "dark", or none for that of the system.
"use strict";
(() => {
  try {
    const theme = localStorage.getItem("kavka-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* Storage is disabled: the theme of the system. */ }
  document.documentElement.classList.add("js");
})();
