/* Light or dark: the system's, or the button's. Pages call `Theme.listen` with what draws them. */
"use strict";

const Theme = (() => {
  const root = document.documentElement;

  function listen(draw) {
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
    const button = document.getElementById("theme");
    const label = () => { button.textContent = isDark() ? "Light mode" : "Dark mode"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      label();
      draw();
    });
    dark.addEventListener("change", () => { label(); draw(); });
    label();
    let before;
    window.addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      root.dataset.theme = "light";
      document.querySelectorAll("details").forEach((part) => { part.open = true; }); // paper has nothing to unfold
      draw();
    });
    window.addEventListener("afterprint", () => {
      if (before === undefined) delete root.dataset.theme;
      else root.dataset.theme = before;
      draw();
    });
  }

  return { listen };
})();
