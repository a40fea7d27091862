// Runs before the first paint, so that a chosen theme does not flash the other one.
try {
  const theme = localStorage.getItem("spectralclip-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* a sandboxed frame has no storage; the system's theme is then right */ }
