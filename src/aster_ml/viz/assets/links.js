// What belongs together, as viz/links.py has it: each hop's places and what came of them.

const HOPS = ["line", "node", "step", "ast", "lin", "src", "asm"];

function addLink(table, before, after) {
  if (!table.has(before)) table.set(before, new Set());
  table.get(before).add(after);
}

function linesOfCall(call) {
  return app.data.calls[call].stack.map((f) => {
    const frame = app.data.frames[f];
    return `line:${frame[0]}:${frame[1]}`;
  });
}

function linkTables(r, s) {
  return once(`links${r}.${s}`, () => {
    const data = app.data;
    const tables = HOPS.slice(1).map(() => new Map());
    const direct = new Map();
    const realize = data.realizes[r];
    if (!realize) return { tables, back: tables.map(reversed), direct };
    const steps = data.schedules[realize.schedule].steps;
    for (const [node, call] of Object.entries(realize.calls)) {
      for (const line of linesOfCall(call)) addLink(tables[0], line, `node:${node}`);
    }
    steps.forEach((step, i) => {
      (step.from || []).forEach((origin, p) => {
        for (const [ast, nodes] of Object.entries(origin)) {
          for (const node of nodes) {
            addLink(tables[1], `node:${node}`, `step:${i}`);
            if (i === s) {
              addLink(direct, `node:${node}`, `ast:${p}:${ast}`);
              addLink(direct, `ast:${p}:${ast}`, `node:${node}`);
            }
          }
          if (i === s) addLink(tables[2], `step:${i}`, `ast:${p}:${ast}`);
        }
      });
    });
    const kernel = steps[s] && data.kernels[steps[s].kernel];
    if (kernel) {
      kernel.parts.forEach((part, p) => {
        for (const [ast, places] of Object.entries(part.lowered)) {
          for (const place of places) addLink(tables[3], `ast:${p}:${ast}`, `lin:${p}:${place}`);
        }
      });
      kernel.places.forEach((found, line) => {
        if (found) addLink(tables[4], `lin:${found[0]}:${found[1]}`, `src:${line}`);
      });
      kernel.asm_lines.forEach((source, line) => {
        if (source) addLink(tables[5], `src:${source - 1}`, `asm:${line}`);
      });
    }
    return { tables, back: tables.map(reversed), direct };
  });
}

function reversed(table) {
  const found = new Map();
  for (const [before, after] of table) for (const place of after) addLink(found, place, before);
  return found;
}

function follow(table, places) {
  const found = new Set();
  for (const place of places) for (const next of table.get(place) || []) found.add(next);
  return found;
}

function linked(place) {
  const { tables, back, direct } = linkTables(app.realize, app.step);
  const hop = HOPS.indexOf(place.split(":")[0]);
  const found = new Set([place]);
  const keep = (places) => {
    for (const x of places) found.add(x);
    return places;
  };
  let now = new Set([place]);
  for (let h = hop; h < tables.length; h++) {
    if (h === 1) {
      keep(follow(tables[1], now));
      now = keep(follow(direct, now));
    } else if (!(h === 2 && hop < 2)) {
      now = keep(follow(tables[h], now));
    }
  }
  now = new Set([place]);
  for (let h = hop - 1; h >= 0; h--) {
    if (h === 2) {
      keep(follow(back[2], now));
      now = keep(follow(direct, now));
    } else if (!(h === 1 && hop > 2)) {
      now = keep(follow(back[h], now));
    }
  }
  return found;
}
