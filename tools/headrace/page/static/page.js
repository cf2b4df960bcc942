// Load parts of views, renew the live view, complete filters, and handle keys. The page works
// without this script.
"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const fetchPage = async (url) => {
  const answer = await fetch(url, { redirect: "error", credentials: "same-origin" });
  if (!answer.ok) throw new Error(answer.status);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
};

// Parts that need a store: load them when they come near.
const loading = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    loading.unobserve(target);
    fetchPage(target.dataset.load)
      .then((page) => target.replaceChildren(...document.importNode(page.body, true).childNodes))
      .catch(() => target.classList.add("failed"));
  }
}, { rootMargin: "300px" });
for (const place of all("[data-load]")) loading.observe(place);

// The live view: renew a second after the last answer, but not while the page is hidden.
const live = document.querySelector("[data-live]"), stale = document.getElementById("stale");
const renew = async () => {
  let wait = 1000;
  if (!document.hidden && !live.contains(document.activeElement)) {
    try {
      const fresh = (await fetchPage(location.href)).querySelector("[data-live]");
      if (fresh) {
        const part = document.importNode(fresh, true), lefts = all(".wide", live).map((one) => one.scrollLeft);
        window.keepCharts?.(live, part);
        live.replaceChildren(...part.childNodes);
        all(".wide", live).forEach((one, at) => { one.scrollLeft = lefts[at] ?? 0; });
        window.drawCharts?.(live);
        live.dataset.at = fresh.dataset.at;
        stale.hidden = true;
      }
    } catch {
      wait = 5000;
      stale.querySelector("time").textContent = live.dataset.at;
      stale.hidden = false;
    }
  }
  setTimeout(renew, wait);
};
if (live) setTimeout(renew, 1000);

// Samples: add the next page when the last line comes into view.
const nearing = new IntersectionObserver(async ([{ target: row, isIntersecting }]) => {
  const link = document.querySelector("[data-more]");
  if (!isIntersecting || !link) return;
  nearing.unobserve(row);
  try {
    const page = await fetchPage(link.href), next = page.querySelector("[data-more]");
    row.after(...document.importNode(page.getElementById("samples"), true).children);
    nearing.observe(row.parentNode.lastElementChild);
    if (next) link.href = next.href;
    else link.remove();
  } catch { /* The link is still there. */ }
});
const end = document.querySelector("#samples > tr:last-child");
if (end) nearing.observe(end);

// Images that cannot be shown leave their place to others.
document.addEventListener("error", ({ target }) => { if (target.matches?.(".thumbs img")) target.remove(); }, true);

// Filters: offer columns, and after a column of classes their names.
const named = (name) => (/^[A-Za-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
const offersFor = (columns, text) => {
  const value = text.match(/("(?:[^"]|"")+"|\w+)\s*(?:=|!=|==|<>)\s*('?)([^']*)$/);
  const column = value && columns.find(([name]) => named(name) === value[1]);
  if (column?.[2].length) {
    const start = text.length - value[3].length - value[2].length;
    const quoted = column[2].map((name) => [`'${name.replaceAll("'", "''")}'`, "class"]);
    return [start, quoted.filter(([name]) => name.slice(1).toLowerCase().startsWith(value[3].toLowerCase()))];
  }
  const [word] = text.match(/[\w"]*$/);
  const before = text.slice(0, text.length - word.length).trimEnd();
  if (before && !/(\band|\bor|\bnot|\()$/i.test(before)) return [0, []];
  return [text.length - word.length, columns.map(([name, kind]) => [named(name), kind]).filter(([name]) => name.toLowerCase().startsWith(word.toLowerCase()) && name !== word)];
};
const complete = (field) => {
  const columns = JSON.parse(field.dataset.offers), list = document.createElement("ul");
  let start = 0, chosen = -1;
  Object.assign(list, { className: "offers", id: "offers", role: "listbox", ariaLabel: "Completions", hidden: true });
  field.after(list);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": "offers", "aria-expanded": "false", "aria-autocomplete": "list" })) field.setAttribute(name, value);
  const choose = (at) => {
    chosen = at;
    all("li", list).forEach((item, number) => item.setAttribute("aria-selected", number === at));
    list.children[at]?.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[at]?.id ?? "");
  };
  const show = (offers) => {
    list.replaceChildren(...offers.slice(0, 30).map(([text, kind], at) => {
      const item = document.createElement("li"), note = document.createElement("small");
      note.textContent = kind;
      item.append(text, note);
      Object.assign(item, { id: `offer-${at}`, role: "option" });
      item.dataset.text = text;
      item.addEventListener("mousedown", (event) => { event.preventDefault(); take(at); });
      return item;
    }));
    list.hidden = !offers.length;
    field.setAttribute("aria-expanded", !list.hidden);
    choose(-1);
  };
  const look = () => {
    const [at, offers] = offersFor(columns, field.value.slice(0, field.selectionStart));
    start = at;
    show(offers);
  };
  const take = (at) => {
    field.setRangeText(`${list.children[at].dataset.text} `, start, field.selectionEnd, "end");
    show([]);
  };
  field.addEventListener("input", look);
  field.addEventListener("focus", () => field.value || look());
  field.addEventListener("click", () => field.value && show([]));
  field.addEventListener("blur", () => show([]));
  field.addEventListener("keydown", (event) => {
    const count = list.children.length;
    if (!count) return;
    if (event.key === "ArrowDown") choose((chosen + 1) % count);
    else if (event.key === "ArrowUp") choose((chosen > 0 ? chosen : count) - 1);
    else if (event.key === "Tab" && !event.shiftKey && (chosen >= 0 || start < field.selectionStart)) take(Math.max(chosen, 0));
    else if (event.key === "Enter" && chosen >= 0) take(chosen);
    else if (event.key === "Escape") show([]);
    else return /^Arrow|^Home|^End/.test(event.key) && show([]);
    event.preventDefault();
  });
};
for (const field of all("[data-offers]")) complete(field);

// Clicks: copy, unfold a long text, enlarge an image, close menus.
const box = document.getElementById("box");
document.addEventListener("click", (event) => {
  const { target } = event, copy = target.closest("[data-copy]"), picture = target.closest(".picture");
  if (copy) navigator.clipboard?.writeText(document.getElementById(copy.dataset.copy).textContent).then(() => { copy.textContent = "Copied"; });
  else if (target.dataset.by) turn(Number(target.dataset.by));
  else if (target.closest("#box")) box.close();
  else if (picture) enlarge(picture);
  else if (!target.closest("a")) all(".samples td").filter((cell) => cell.contains(target)).forEach(unfold);
  for (const menu of all(".menu[open]")) if (!menu.contains(target)) menu.open = false;
});

// Enlarge an image, in place of the one before it.
function enlarge(picture) {
  const caption = document.createElement("p");
  caption.textContent = picture.querySelector("img").alt;
  box.firstElementChild.replaceChildren(picture.cloneNode(true), caption);
  box.number = all("main .picture").indexOf(picture);
  if (!box.open) box.showModal();
}
function turn(by) {
  const other = all("main .picture")[box.number + by];
  if (other) enlarge(other);
}

// Unfold a cell, and fetch the rest of a text that was cut.
async function unfold(cell) {
  const line = cell.querySelector(".line"), isCut = / …|first [\d,]+ (shown|as text)/.test(line?.textContent);
  if (!line || (!cell.matches(".open") && !isCut && line.scrollWidth <= line.clientWidth)) return;
  if (!cell.classList.toggle("open") || !isCut) return;
  const page = await fetchPage(cell.parentNode.querySelector("a").href).catch(() => undefined);
  const whole = page?.querySelector(`[data-column="${cell.dataset.column}"]`);
  if (whole) line.replaceChildren(...document.importNode(whole, true).childNodes);
}

// Keys.
const step = (by) => {
  const rows = all("#samples > tr"), at = rows.indexOf(document.activeElement.closest("#samples > tr"));
  const row = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  row?.focus();
  row?.scrollIntoView({ block: "nearest" });
};
let last = "";
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const menu of all(".menu[open]")) menu.open = false;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const follow = (selector, root = document) => root.querySelector(selector)?.click();
  const row = event.target.closest("#samples > tr"), pair = last === "g" ? event.key : "";
  last = event.key;
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (box.open && by) turn(by);
  else if (/^[drl]$/.test(pair)) follow(`header [accesskey=${pair}]`);
  else if (event.key === "n") follow("a[rel=next]");
  else if (event.key === "p") follow("a[rel=prev]");
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "Enter" && event.target === row) follow("a", row);
  else if (event.key === "x") all("td", row ?? document.createElement("i")).forEach(unfold);
  else if (event.key === "Enter" && event.target.matches(".picture")) event.target.click();
  else if (event.key === "?") document.getElementById("keys").showModal();
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("main input:not([type=hidden]), main textarea")?.focus();
  }
});
