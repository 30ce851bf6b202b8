// Numbers, sizes, rates, durations and dates as texts. formats.py has the same functions with the same results.
"use strict";
window.kavka = window.kavka ?? {};
window.kavka.format = (() => {
  const SPACE = "\u202f";
  const rounded = (value, digits) => (Math.floor(value * 10 ** digits + 0.5) / 10 ** digits).toFixed(digits);
  const scaled = (value, step, units, space) => {
    let size = Math.abs(value), unit = 0;
    const digits = () => (unit === 0 && Number.isInteger(size) || size >= 99.95 ? 0 : 1);
    while (unit < units.length - 1 && Number(rounded(size, digits())) >= step) { size /= step; unit += 1; }
    return `${value < 0 ? "-" : ""}${rounded(size, digits())}${units[unit] ? space + units[unit] : ""}`;
  };
  const isMissing = (value) => value === null || value === undefined;

  const number = (value) => {
    if (isMissing(value)) return "–";
    const text = rounded(Math.abs(value), 0);
    return `${value < 0 && text !== "0" ? "-" : ""}${text.replace(/\B(?=(\d{3})+$)/g, SPACE)}`;
  };
  const bytes = (value) => (isMissing(value) ? "–" : scaled(value, 1000, ["B", "kB", "MB", "GB", "TB", "PB"], " "));
  const compact = (value) => (isMissing(value) ? "–" : scaled(value, 1000, ["", "k", "M", "G", "T"], SPACE));
  const rate = (value) => {
    if (isMissing(value)) return "–";
    return Math.abs(value) > 0 && Math.abs(value) < 9.95 ? rounded(value, 1) : number(value);
  };
  const share = (value) => (isMissing(value) ? "–" : `${rounded(value * 100, 0)}%`);
  const duration = (seconds) => {
    if (isMissing(seconds)) return "–";
    if (seconds <= 0) return "0 s";
    if (seconds < 0.9995) return `${rounded(seconds * 1000, 0)} ms`;
    if (seconds < 9.95) return `${Number(rounded(seconds, 1))} s`;
    let left = Math.floor(seconds + 0.5);
    const parts = [];
    for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
      const count = Math.floor(left / size);
      left -= count * size;
      if (count || parts.length) parts.push([count, unit]);
    }
    return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
  };
  const two = (value) => String(value).padStart(2, "0");
  // In the local time zone of the browser; the server writes UTC, and says so.
  const date = (value, withMilliseconds = false) => {
    const time = value instanceof Date ? value : new Date(value);
    if (Number.isNaN(time.getTime())) return "–";
    const day = `${String(time.getFullYear()).padStart(4, "0")}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
    const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
    return `${day} ${clock}${withMilliseconds ? `.${String(time.getMilliseconds()).padStart(3, "0")}` : ""}`;
  };
  const count = (value, noun, plural = `${noun}s`) => `${number(value)} ${value === 1 ? noun : plural}`;
  return { number, bytes, compact, rate, share, duration, date, count };
})();
