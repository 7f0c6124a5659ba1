// Keeps a page up to date: asks for it again and takes over its main part. Without this script a page is as it was when it was asked for.
"use strict";
(() => {
  const main = document.getElementById("main");
  const state = document.getElementById("live");
  if (!main || !state || !document.body.hasAttribute("data-live")) return;
  const LEAST_MS = 5000;

  // What is being read or filled in stays as it is.
  const isInUse = () =>
    main.querySelector("details[open]") !== null ||
    (main.contains(document.activeElement) && document.activeElement.matches("input, select, button, summary")) ||
    (!document.getSelection().isCollapsed && main.contains(document.getSelection().anchorNode));

  const again = (ms) => setTimeout(refresh, ms);

  async function refresh() {
    if (document.hidden || isInUse()) return again(1000);
    const since = performance.now();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error", headers: { accept: "text/html" } });
      if (answer.status === 401) {
        state.textContent = "The session has ended: gq web";
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      const time = page.getElementById("live");
      if (!fresh || !time) throw new Error("no page");
      if (!isInUse() && fresh.innerHTML !== main.innerHTML) {
        // By nodes that the parser made: a script among them would not run.
        main.replaceChildren(...fresh.childNodes);
      }
      state.replaceChildren(...time.childNodes);
      state.classList.remove("old");
    } catch {
      state.classList.add("old");
    }
    // A page that takes long is asked for less often.
    again(Math.max(LEAST_MS, 20 * (performance.now() - since)));
  }
  again(LEAST_MS);
})();
