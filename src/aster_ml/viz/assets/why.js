// Why: the costs that decided, as the compiler noted them when it chose.

function costTable(decision) {
  const most = Math.max(...decision.costs.map(([, c]) => c), 1e-9);
  const body = el("tbody");
  for (const [name, cost] of decision.costs) {
    const chosen = name === decision.chosen || decision.costs.length === 1;
    body.append(el("tr", { class: chosen ? "chosen" : "" }, el("td", {}, name),
      el("td", { class: "number" }, cost.toLocaleString("en", { maximumSignificantDigits: 4 })),
      el("td", {}, el("i", { class: "cost", style: `width:${(180 * cost) / most}px` })),
      el("td", {}, chosen ? "chosen" : ratio(cost, decision))));
  }
  return el("table", {}, el("caption", {}, `${decision.about}: ${decision.chosen}`),
    el("thead", {}, el("tr", {}, el("th", {}, "candidate"), el("th", { class: "number" }, "cost"),
      el("th", {}, el("span", { class: "hidden" }, "bar")), el("th", {}, ""))), body);
}

function ratio(cost, decision) {
  const found = decision.costs.find(([name]) => name === decision.chosen);
  if (!found || !found[1]) return "";
  return `refused: ${(cost / found[1]).toFixed(2)} times the cost`;
}

function bullets(lines) {
  return el("ul", {}, lines.map((text) => el("li", {}, text)));
}

function showWhy(panel) {
  const box = el("div", { class: "fill why" });
  panel.append(box);
  const schedule = currentSchedule();
  const step = currentStep();
  const kernel = currentKernel();
  if (!schedule) {
    box.append(el("p", { class: "empty" }, "nothing was computed in this run"));
    return;
  }
  if (step) {
    box.append(el("section", {}, el("h2", {}, `Step ${app.step}: ${kernel ? kernel.name : step.kind}`),
      bullets(step.why || [`${step.kind} of ${bytesText(step.bytes)}`])));
  }
  (kernel ? kernel.parts : []).forEach((part, i) => {
    const name = kernel.parts.length > 1 ? `Kernel ${i} of the run: ${kernel.names[i]}` : "The kernel";
    box.append(el("section", {}, el("h2", {}, name), bullets(part.why),
      part.decisions.map(costTable)));
  });
  const stored = schedule.slots.map((s, i) => [i, s]).filter(([i, s]) => i >= schedule.args && s[4]);
  if (stored.length) {
    const body = el("tbody");
    for (const [i, [size, dtype, , device, why]] of stored) {
      body.append(el("tr", {}, el("td", { class: "number" }, i),
        el("td", { class: "number" }, `${size.toLocaleString("en")} x ${dtype}`),
        el("td", {}, device), el("td", {}, why)));
    }
    box.append(el("section", {}, el("table", {},
      el("caption", {}, "Values that are stored on the way, and why they are not computed where " +
        "they are read"),
      el("thead", {}, el("tr", {}, el("th", {}, "slot"), el("th", {}, "size"),
        el("th", {}, "device"), el("th", {}, "stored because"))), body)));
  }
}
