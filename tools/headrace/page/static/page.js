// Refresh the live view, add samples while scrolling, and handle keys. The page works without this
// script.
"use strict";

const fetchPage = async (url) => {
  const answer = await fetch(url, { redirect: "error", credentials: "same-origin" });
  if (!answer.ok) throw new Error(answer.status);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
};

// The live view: refresh a second after the last answer, but not while the page is hidden.
const live = document.querySelector("[data-live]");
const refresh = async () => {
  let wait = 1000;
  if (!document.hidden && !live.contains(document.activeElement)) {
    try {
      const fresh = (await fetchPage(location.href)).querySelector("[data-live]");
      if (fresh) live.replaceChildren(...document.importNode(fresh, true).childNodes);
    } catch { wait = 5000; }
  }
  setTimeout(refresh, wait);
};
if (live) setTimeout(refresh, 1000);

// Samples: add the next page when its link comes near.
const nearing = new IntersectionObserver(async ([entry]) => {
  const link = entry.target;
  if (!entry.isIntersecting || link.dataset.busy) return;
  link.dataset.busy = "1";
  try {
    const page = await fetchPage(link.href), grid = document.getElementById(link.dataset.more);
    grid.append(...document.importNode(page.getElementById(link.dataset.more), true).children);
    const next = page.querySelector("[data-more]");
    nearing.unobserve(link);
    if (!next) { link.remove(); return; }
    const fresh = document.importNode(next, true);
    link.replaceWith(fresh);
    nearing.observe(fresh);
  } catch { nearing.unobserve(link); }
}, { rootMargin: "600px" });
const more = document.querySelector("[data-more]");
if (more) nearing.observe(more);

// Files: copy their text into a field, so that no file is sent.
for (const input of document.querySelectorAll("input[data-into]")) {
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file && file.size <= 1 << 20) document.getElementById(input.dataset.into).value = await file.text();
  });
}

// Keys.
let last = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) return;
  const follow = (selector) => document.querySelector(selector)?.click();
  const pair = last === "g" ? event.key : "";
  last = event.key;
  if (pair === "d") follow("header a[href='/']");
  else if (pair === "r") follow("header a[href='/run']");
  else if (pair === "l") follow("header a[href='/live']");
  else if (event.key === "n") follow("a[rel=next]");
  else if (event.key === "p") follow("a[rel=prev]");
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("main input:not([type=hidden]), main textarea")?.focus();
  }
});
