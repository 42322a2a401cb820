// Light or dark: the system's choice unless the visitor made one. Runs before the page is drawn, so it never flashes.
(() => {
  const ORDER = ["auto", "light", "dark"];
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  const apply = (theme) => {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
    document.dispatchEvent(new Event("themechange"));
  };
  apply(ORDER.includes(stored()) ? stored() : "auto");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(root.dataset.theme));
  document.addEventListener("DOMContentLoaded", () => {
    apply(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", () => {
      const next = ORDER[(ORDER.indexOf(root.dataset.theme) + 1) % ORDER.length];
      try { localStorage.setItem("theme", next); } catch { /* kept for this visit only */ }
      apply(next);
    });
  });
})();
