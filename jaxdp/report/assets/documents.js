// The resolved settings of one run, or of two side by side with what differs.

const chosen = (id) => document.getElementById(id).value;

function startDocuments() {
  const names = Object.keys(report.documents);
  if (!names.length) return;
  const options = () => names.map((name) => html("option", { value: name }, [name]));
  document.getElementById("document-a").append(...options());
  document.getElementById("document-b").append(html("option", { value: "" }, ["nothing"]), ...options());
  for (const id of ["document-a", "document-b", "document-filter", "document-differing"]) {
    document.getElementById(id).addEventListener("input", showDocuments);
  }
  showDocuments();
}

function openDocument(id, name) {
  document.getElementById(id).value = name;
  showDocuments();
  card.hide(true);
  document.getElementById("settings").scrollIntoView();
  document.getElementById(id).focus({ preventScroll: true });
}

function showDocuments() {
  const [a, b] = [report.documents[chosen("document-a")], report.documents[chosen("document-b")]];
  const differing = document.getElementById("document-differing");
  differing.disabled = !b;
  const all = [...new Set([...Object.keys(a), ...Object.keys(b ?? {})])];
  const differs = (key) => Boolean(b) && JSON.stringify(a[key]) !== JSON.stringify(b[key]);
  const wanted = chosen("document-filter").toLowerCase();
  const keys = all.filter((key) => key.toLowerCase().includes(wanted) && (!b || !differing.checked || differs(key)));
  const count = all.filter(differs).length;
  document.getElementById("document-summary").textContent = b ? `${count} of ${all.length} keys differ.` : `${all.length} keys.`;
  const head = ["key", chosen("document-a"), ...(b ? [chosen("document-b")] : [])];
  const rows = keys.map((key) => {
    const cells = [a, ...(b ? [b] : [])].map((document) => html("td", { class: "wrap" }, [settingText(document, key)]));
    return html("tr", differs(key) ? { class: "differs" } : {}, [html("td", { class: "mono" }, [key]), ...cells]);
  });
  document.getElementById("document-table").replaceChildren(
    html("thead", {}, [html("tr", {}, head.map((name) => html("th", { scope: "col" }, [name])))]),
    html("tbody", {}, rows),
  );
}

function settingText(document, key) {
  if (!(key in document)) return "(absent)";
  const value = document[key];
  return typeof value === "string" ? value || "(empty)" : value === null ? "(none)" : JSON.stringify(value);
}
