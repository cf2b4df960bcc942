// Order version 2 once more, as docs/order.md words it: slow and plain.
//
// Reads one question a line of JSON from standard input, and writes the answer as a line of JSON:
// - a spec, {"seed", "shuffle", ..., "epoch", "counts", "bytes", "blocks", "skips"}: the
//   sample ids of its epoch;
// - a mixture, {"seed", ..., "epoch", "datasets", "batching", "epoch_size", "schedule"}: the same;
// - a token, {"token": {...}, "mixture", "skips"}: its bytes, the digests worked out, as hex.
// Seeds, epochs and a token's numbers are strings, since JSON's do not hold 63 bits.

import { createInterface } from "node:readline";

const WORD = (1n << 64n) - 1n;
const [SECOND, DATASET, PHASE, SLOTS, CHOICE, SPAN] = [6n, 7n, 8n, 9n, 10n, 11n];
const [PHASES, COINS, DEAL, STEP, SKIPS] = [13n, 14n, 15n, 16n, 17n];
const SLICES = [1, 2, 3, 5, 7, 11, 13, 17];

const mix = (z) => {
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & WORD;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & WORD;
  return z ^ (z >> 31n);
};
const absorb = (key, word) => mix(key ^ mix((BigInt(word) + 0x9e3779b97f4a7c15n) & WORD));
const keyOf = (key, ...words) => words.reduce(absorb, key);
const draw = (key, counter) => mix(mix((key + BigInt(counter)) & WORD) ^ keyOf(key, SECOND));
const share = (word, m) => Number(((word >> 32n) * BigInt(m)) >> 32n);
const floor = (a, b) => Math.floor(a / b);
const ceil = (a, b) => Math.ceil(a / b);

function sorted(key, n) {
  const drawn = Array.from({ length: n }, (_, i) => [draw(key, i) >> 32n, i]);
  drawn.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1]));
  return drawn.map(([, i]) => i);
}

function network(key, n) {
  let width = Math.floor(Math.sqrt(n));
  while (width * width < n) width += 1;
  const height = ceil(n, width);
  const tables = Array.from({ length: 12 }, (_, turn) => {
    const [size, modulus] = turn % 2 === 0 ? [height, width] : [width, height];
    const base = BigInt(turn) << 56n;
    return Array.from({ length: size }, (_, i) => share(draw(key, base + BigInt(i)), modulus));
  });
  return (p) => {
    do {
      let [high, low] = [floor(p, width), p % width];
      for (let turn = 0; turn < 12; turn += 1) {
        if (turn % 2 === 0) low = (low + tables[turn][high]) % width;
        else high = (high + tables[turn][low]) % height;
      }
      p = high * width + low;
    } while (p >= n);
    return p;
  };
}

function memory(spec) {
  const [n, b] = [spec.counts, spec.bytes].map((list) => list.reduce((a, c) => a + c, 0));
  const limits = [n];
  if (spec.shuffle_bytes) {
    limits.push(Number((BigInt(spec.shuffle_bytes) * BigInt(n)) / BigInt(Math.max(b, 1))));
  }
  if (spec.shuffle_samples) limits.push(spec.shuffle_samples);
  return Math.max(1, Math.min(...limits));
}

function runsOf(spec) {
  const shards = [];
  let [first, number] = [0, 0];
  spec.counts.forEach((n, i) => {
    if (n === 0) return;
    const s = Math.max(1, ceil(spec.bytes[i], n));
    const u = Math.min(spec.blocks[i], n);
    const unit = Math.max(u, 1);
    const wanted = u > 0
      ? Math.max(1, floor(spec.run_bytes + floor(s * u, 2), s * u)) * u
      : Math.max(1, floor(spec.run_bytes, s));
    const size = Math.min(n, Math.max(wanted, ceil(n, 2 ** 20 * unit) * unit));
    const runs = ceil(n, size);
    shards.push({ first, n, size, runs, number });
    first += n;
    number += runs;
  });
  return { shards, count: number };
}

function piecesOf({ shards, count }) {
  const pieces = [];
  const ordinals = new Map();
  for (const shard of shards) {
    let [left, at] = [shard.runs, shard.number];
    const cut = (m) => {
      const i = ordinals.get(m) ?? 0;
      ordinals.set(m, i + 1);
      pieces.push({ shard, first: at, m, i });
      at += m;
      left -= m;
    };
    if (count > 2 ** 20) cut(left);
    while (left >= 16) cut(16);
    for (const m of [8, 4, 2, 1]) if (left >= m) cut(m);
  }
  return pieces;
}

function multiplier(word) {
  let [above, below] = [0n, 1n];
  for (let i = 47n; i >= 0n; i -= 1n) {
    [above, below] = [below, (1n + ((word >> i) & 1n)) * below + above];
  }
  return (above << 32n) / below | 1n;
}

function layout(spec, epochKey) {
  const runs = runsOf(spec);
  const coinKey = keyOf(epochKey, COINS);
  const phaseKey = keyOf(epochKey, PHASES);
  const coin = (level, x) =>
    Number((draw(coinKey, (BigInt(level) << 56n) + BigInt(floor(x, 64))) >> BigInt(x % 64)) & 1n);
  const A = multiplier(draw(phaseKey, 0));
  const laid = [];
  for (const { shard, first, m, i } of piecesOf(runs)) {
    const step = (1n << 62n) / BigInt(m);
    const shift = draw(phaseKey, m) >> 32n;
    const phase = ((BigInt(i) * A + shift) & 0xffffffffn) * (step >> 32n);
    for (let place = 0; place < m; place += 1) {
      let [low, size, level, t] = [first, m, 0, place];
      while (size > 1) {
        const half = floor(t, 2);
        const side = (t % 2) ^ coin(level, low + half);
        let left = floor(size, 2);
        if (size % 2 === 1) left += 1 - coin(level, low + floor(size, 2));
        if (side === 1) [low, size] = [low + left, size - left];
        else size = left;
        t = half;
        level += 1;
      }
      const before = (low - shard.number) * shard.size;
      const length = Math.min(shard.size, shard.n - before);
      laid.push({ time: BigInt(place) * step + phase, m, id: shard.first + before, length });
    }
  }
  laid.sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : a.m - b.m));
  return laid.flatMap(({ id, length }) => Array.from({ length }, (_, i) => id + i));
}

function laneOrder(spec, M, epochKey, lane, stretch, sortLimit) {
  const n = stretch.length;
  if (!spec.shuffle) return stretch;
  const d = Math.max(1, ...SLICES.filter((s) => s * (s + 2) <= M));
  const g = Math.max(1, floor(floor(2 * M, 2 * d + 3), d));
  const q = g * d;
  const ramp = [16, 16, 8, 4, 2].map((part) => [1, floor(q, part)]);
  for (const s of SLICES) if (s > 1 && s < d) ramp.push([s, floor(q, s)]);
  const early = ramp.filter(([, groups]) => groups > 0);
  const cohorts = [];
  let end = 0;
  while (n > M) {
    const [slices, groups] = early[cohorts.length] ?? [d, g];
    if (end + slices * groups > n) break;
    cohorts.push({ start: end, slices, groups });
    end += slices * groups;
  }
  const C = cohorts.length;
  const steps = Array.from({ length: C + 1 }, () => []);
  const dealKey = keyOf(epochKey, DEAL, lane);
  cohorts.forEach(({ start, slices, groups }, c) => {
    const dealt = Array.from({ length: slices }, () => []);
    for (let x = start; x < start + slices * groups; x += slices) {
      const v = draw(dealKey, x);
      const slope = 1 + share(v, slices - 1);
      const turn = share((v & 0xffffffffn) << 32n, slices);
      for (let a = 0; a < slices; a += 1) dealt[(slope * a + turn) % slices].push(stretch[x + a]);
    }
    dealt.forEach((slice, i) => steps[Math.min(c + i, C)].push(slice));
  });
  steps[C].push(stretch.slice(end));
  return steps.flatMap((slices, step) => {
    const slots = slices.flat();
    const key = keyOf(epochKey, STEP, lane, step);
    if (slots.length <= sortLimit) return sorted(key, slots.length).map((slot) => slots[slot]);
    const at = network(key, slots.length);
    return slots.map((_, p) => slots[at(p)]);
  });
}

function lanesOf(N, { unit, lanes }) {
  return Array.from({ length: N }, (_, position) => {
    const T = Math.min(unit, N - floor(position, unit) * unit);
    return floor((position % unit + 1) * lanes - 1, T);
  });
}

function laidOut(spec, M, epochKey) {
  const n = spec.counts.reduce((a, c) => a + c, 0);
  const stored = !spec.shuffle || (spec.lanes === 1 && M === n);
  return stored ? Array.from({ length: n }, (_, i) => i) : layout(spec, epochKey);
}

function epochOf(spec) {
  const epochKey = keyOf(0n, BigInt(spec.seed), BigInt(spec.epoch));
  const n = spec.counts.reduce((a, c) => a + c, 0);
  const M = memory(spec);
  const laid = laidOut(spec, M, epochKey);
  const laneOf = lanesOf(n, spec);
  const lengths = new Array(spec.lanes).fill(0);
  for (const lane of laneOf) lengths[lane] += 1;
  let start = 0;
  const lanes = lengths.map((length, lane) => {
    start += length;
    return laneOrder(spec, M, epochKey, lane, laid.slice(start - length, start), 2 ** 12);
  });
  const next = new Array(spec.lanes).fill(0);
  const epoch = laneOf.map((lane) => lanes[lane][next[lane]++]);
  return spec.skips.length ? withoutSkips(spec, epochKey, epoch) : epoch;
}

function withoutSkips(spec, epochKey, epoch) {
  const skipped = new Set(spec.skips);
  const key = keyOf(epochKey, SKIPS);
  const found = new Map();
  const keptOf = (first, n) => {
    const range = `${first} ${n}`;
    if (!found.has(range)) {
      const ids = Array.from({ length: n }, (_, i) => first + i);
      found.set(range, ids.filter((id) => !skipped.has(id)));
    }
    return found.get(range);
  };
  const { shards } = runsOf(spec);
  const substitute = (x) => {
    const shard = shards.find(({ first, n }) => x < first + n);
    const before = floor(x - shard.first, shard.size) * shard.size;
    const length = Math.min(shard.size, shard.n - before);
    let kept = keptOf(shard.first + before, length);
    if (kept.length === 0) kept = keptOf(shard.first, shard.n);
    if (kept.length === 0) kept = keptOf(0, spec.counts.reduce((a, c) => a + c, 0));
    return kept[Number(draw(key, x) % BigInt(kept.length))];
  };
  return epoch.map((x) => (skipped.has(x) ? substitute(x) : x));
}

// Mixtures.

function even(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 === 0 ? low : low + 1;
}

function apportion(n, sums) {
  const whole = BigInt(sums.at(-1));
  const ends = sums.map((sum) => Number((BigInt(n) * BigInt(sum)) / whole));
  return ends.slice(1).map((end, d) => end - ends[d]);
}

function sumsOf(counts) {
  const sums = [0];
  for (const count of counts) sums.push(sums.at(-1) + count);
  return sums;
}

function scheduleOf({ datasets, schedule }) {
  if (schedule?.knots) return linear(schedule);
  if (schedule) return schedule;
  if (datasets[0].proportion === null) return null;
  return { starts: [0], weights: [datasets.map(({ proportion }) => proportion)] };
}

function linear({ knots, weights }) {
  const [starts, pieces] = [[], []];
  for (let knot = 0; knot + 1 < knots.length; knot += 1) {
    const [a, b] = [knots[knot], knots[knot + 1]];
    for (let i = 0; i < 256; i += 1) {
      const start = a + floor((b - a) * i, 256);
      if (starts.length && start <= starts.at(-1)) continue;
      starts.push(start);
      pieces.push(
        weights[knot].map((w, d) => w + (weights[knot + 1][d] - w) * ((i + 0.5) / 256)),
      );
    }
  }
  return { starts: [...starts, knots.at(-1)], weights: [...pieces, weights.at(-1)] };
}

function integersOf(weights) {
  const scale = floor(2 ** 40, weights.length) / Math.max(...weights);
  return weights.map((w) => Math.max(even(w * scale), w ? 1 : 0));
}

function chosenOf(dataset, count, key) {
  // The ids of the chosen samples, and the dataset that they are.
  const used = apportion(count, sumsOf(dataset.counts));
  const ids = [];
  let first = 0;
  dataset.counts.forEach((n, shard) => {
    const c = used[shard];
    const [g, rest] = [ceil(c, dataset.granularity), n - c];
    for (let k = 0; k < g; k += 1) {
      const [low, high] = [floor(k * rest, g), floor((k + 1) * rest, g)];
      const drawn = draw(keyOf(key, CHOICE, shard), k) % BigInt(high - low + 1);
      for (let i = floor(k * c, g); i < floor((k + 1) * c, g); i += 1) {
        ids.push(first + low + i + Number(drawn));
      }
    }
    first += n;
  });
  const bytes = used.map((c, shard) => {
    const [n, b] = [dataset.counts[shard], dataset.bytes[shard]];
    return Math.min(b, (floor(b, Math.max(n, 1)) + 1) * c);
  });
  return { ids, counts: used, bytes, blocks: used.map(() => 0) };
}

function mixtureOf(spec) {
  const total = (list) => list.reduce((a, c) => a + c, 0);
  const byUnit = spec.batching === "per_dataset";
  const schedule = scheduleOf(spec);
  const whole = (count) => (byUnit ? count - (count % spec.unit) : count);
  const sizes = spec.datasets.map(({ counts }) => total(counts));
  const draws = spec.datasets.map(({ choose, repeat }, d) =>
    whole(choose ?? (repeat === null ? sizes[d] : even(repeat * sizes[d]))),
  );
  const N = whole(schedule ? spec.epoch_size || total(sizes) : total(draws));
  const members = spec.datasets.map((dataset, d) => {
    const key = keyOf(0n, BigInt(spec.seed), DATASET, d);
    const kept = { ...dataset, key, ids: null };
    if (dataset.choice === "fixed" && !schedule && draws[d] < sizes[d]) {
      Object.assign(kept, chosenOf(dataset, draws[d], key));
      const numbers = new Map(kept.ids.map((id, number) => [id, number]));
      kept.skips = dataset.skips.filter((id) => numbers.has(id)).map((id) => numbers.get(id));
    }
    for (const name of ["shuffle", "run_bytes", "lanes"]) kept[name] = spec[name];
    return { ...kept, n: total(kept.counts), b: total(kept.bytes) };
  });
  shareMemory(spec, members, schedule, draws);
  const firsts = sumsOf(sizes);
  return { ...spec, byUnit, schedule, draws, N, members, firsts, memo: new Map() };
}

function shareMemory(spec, members, schedule, draws) {
  let weights = draws;
  if (schedule) {
    const pieces = schedule.weights.map((piece) => {
      const scaled = integersOf(piece);
      const all = BigInt(scaled.reduce((a, w) => a + w, 0));
      return scaled.map((w) => Math.max(Number((BigInt(w) << 20n) / all), w ? 1 : 0));
    });
    weights = members.map((_, d) => Math.max(...pieces.map((piece) => piece[d])));
  }
  const W = BigInt(weights.reduce((a, w) => a + w, 0));
  const Q = members.reduce(
    (sum, { n, b }, d) => sum + (BigInt(weights[d]) * BigInt(b)) / BigInt(Math.max(n, 1)),
    0n,
  );
  const limits = [];
  if (spec.shuffle_bytes) limits.push((BigInt(spec.shuffle_bytes) * W) / (Q || 1n));
  if (spec.shuffle_samples) limits.push(BigInt(spec.shuffle_samples));
  const least = limits.reduce((a, b) => (a < b ? a : b), limits[0]);
  members.forEach((member, d) => {
    const own = limits.length ? Number((least * BigInt(weights[d])) / (W || 1n)) : member.n;
    member.M = Math.max(1, Math.min(member.n, own));
  });
}

function stretchesOf(mixture, lane) {
  // Of each dataset the stretch of a lane.
  const sums = sumsOf(mixture.members.map(({ n }) => n));
  const laneOf = lanesOf(sums.at(-1), mixture);
  return mixture.members.map(({ n }, d) => {
    const own = laneOf.slice(sums[d], sums[d + 1]);
    const length = own.filter((other) => other === lane).length;
    const start = own.filter((other) => other < lane).length;
    return length ? [start, length] : [0, n];
  });
}

function passOf(mixture, lane, d, pass, [start, length]) {
  const name = `${lane} ${d} ${pass}`;
  if (!mixture.memo.has(name)) {
    const member = mixture.members[d];
    const key = keyOf(member.key, pass);
    const laid = laidOut(member, member.M, key).slice(start, start + length);
    let ids = laneOrder(member, member.M, key, lane, laid, 2 ** 6);
    if (member.skips.length) ids = withoutSkips(member, key, ids);
    if (member.ids) ids = ids.map((number) => member.ids[number]);
    mixture.memo.set(name, ids.map((id) => id + mixture.firsts[d]));
  }
  return mixture.memo.get(name);
}

function spansOf(mixture, lane, laneOf, epoch) {
  // The spans of a lane's epoch; none here is so long that it is split.
  const { schedule, unit, byUnit, draws } = mixture;
  const before = (position) =>
    byUnit ? floor(position, unit) : laneOf.slice(0, position).filter((l) => l === lane).length;
  const length = before(mixture.N);
  if (!schedule) {
    let counts = draws.map((count) => floor(count, unit));
    if (!byUnit) {
      const sums = sumsOf(draws);
      counts = draws.map((_, d) => before(sums[d + 1]) - before(sums[d]));
    }
    return [{ piece: 0, start: 0, counts, base: counts.map((count) => count * epoch) }];
  }
  const starts = schedule.starts.map((sample) => {
    const position = sample % mixture.N;
    return [floor(sample, mixture.N), before(position - (position % unit))];
  });
  let base = draws.map(() => 0);
  const spans = [];
  for (let past = 0; past <= epoch; past += 1) {
    starts.forEach(([first, place], piece) => {
      if (first > past) return;
      const start = first < past ? 0 : place;
      const [lastEpoch, lastPlace] = starts[piece + 1] ?? [past + 1, 0];
      if (lastEpoch < past) return;
      const stop = lastEpoch === past ? lastPlace : length;
      if (start >= stop) return;
      const counts = apportion(stop - start, sumsOf(integersOf(schedule.weights[piece])));
      if (past === epoch) spans.push({ piece, start, counts, base });
      base = base.map((count, d) => count + counts[d]);
    });
  }
  return spans;
}

function drawnIn(mixture, lane, laneOf, epoch) {
  // For each place of a lane the dataset, and the number of its draw.
  const width = floor((lane + 1) * mixture.unit, mixture.lanes) - floor(lane * mixture.unit, mixture.lanes);
  const size = { random: 2 ** 14, stratified: width, per_dataset: 2 ** 10 }[mixture.batching];
  return spansOf(mixture, lane, laneOf, epoch).flatMap(({ piece, counts, base }) => {
    const key = keyOf(0n, BigInt(mixture.seed), SPAN, epoch, piece, 0, lane);
    const drawn = [];
    counts.forEach((count, d) => {
      const step = (1n << 62n) / BigInt(Math.max(count, 1));
      const stratified = mixture.batching === "stratified";
      const phase = stratified ? step / 2n : draw(keyOf(key, PHASE), d) % step;
      for (let k = 0; k < count; k += 1) {
        drawn.push([(phase + BigInt(k) * step) >> 20n, d, base[d] + k]);
      }
    });
    drawn.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1]));
    const placed = [];
    for (let first = 0; first < drawn.length; first += size) {
      const block = drawn.slice(first, first + size);
      const order = sorted(keyOf(key, SLOTS, floor(first, size)), block.length);
      // The places of a dataset have its draws as they rise.
      const rising = counts.map(() => []);
      block.forEach((one) => rising[one[1]].push(one));
      const taken = counts.map(() => 0);
      placed.push(...order.map((slot) => rising[block[slot][1]][taken[block[slot][1]]++]));
    }
    return placed;
  });
}

function mixtureEpoch(spec) {
  const mixture = mixtureOf(spec);
  const epoch = Number(spec.epoch);
  const laneOf = lanesOf(mixture.N, mixture);
  const { byUnit, unit, lanes } = mixture;
  const stretches = Array.from({ length: lanes }, (_, lane) => stretchesOf(mixture, lane));
  const resolve = (lane, d, j) => {
    const stretch = stretches[lane][d];
    const pass = spec.shuffle ? floor(j, stretch[1]) : 0;
    return passOf(mixture, lane, d, pass, stretch)[j % stretch[1]];
  };
  if (mixture.N === 0) return [];
  if (byUnit) {
    const units = drawnIn(mixture, 0, laneOf, epoch);
    return laneOf.map((lane, position) => {
      const width = floor((lane + 1) * unit, lanes) - floor(lane * unit, lanes);
      const slot = (position % unit) - floor(lane * unit, lanes);
      const [, d, k] = units[floor(position, unit)];
      return resolve(lane, d, k * width + slot);
    });
  }
  const next = new Array(lanes).fill(0);
  const drawn = next.map((_, lane) => drawnIn(mixture, lane, laneOf, epoch));
  return laneOf.map((lane) => {
    const [, d, j] = drawn[lane][next[lane]++];
    return resolve(lane, d, j);
  });
}

// Tokens.

const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8",
  "905724afe1bc683d", "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a",
  "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((row) => [...row].map((digit) => parseInt(digit, 16)));

function blake2b(bytes, length, person) {
  const rotate = (word, by) => ((word >> by) | (word << (64n - by))) & WORD;
  const read = (at, source) => {
    let word = 0n;
    for (let i = 7; i >= 0; i -= 1) word = (word << 8n) | BigInt(source[at + i] ?? 0);
    return word;
  };
  const named = Buffer.alloc(16);
  named.write(person);
  const h = [...IV];
  h[0] ^= 0x01010000n ^ BigInt(length);
  h[6] ^= read(0, named);
  h[7] ^= read(8, named);
  const blocks = Math.max(1, ceil(bytes.length, 128));
  for (let block = 0; block < blocks; block += 1) {
    const m = Array.from({ length: 16 }, (_, i) => read(block * 128 + 8 * i, bytes));
    const last = block + 1 === blocks;
    const v = [...h, ...IV];
    v[12] ^= BigInt(last ? bytes.length : (block + 1) * 128);
    if (last) v[14] ^= WORD;
    const mixIn = (a, b, c, d, x, y) => {
      v[a] = (v[a] + v[b] + x) & WORD;
      v[d] = rotate(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & WORD;
      v[b] = rotate(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + y) & WORD;
      v[d] = rotate(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & WORD;
      v[b] = rotate(v[b] ^ v[c], 63n);
    };
    for (let round = 0; round < 12; round += 1) {
      const s = SIGMA[round % 10];
      for (let i = 0; i < 4; i += 1) {
        mixIn(i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
      }
      for (let i = 0; i < 4; i += 1) {
        const [b, c, d] = [4 + ((i + 1) % 4), 8 + ((i + 2) % 4), 12 + ((i + 3) % 4)];
        mixIn(i, b, c, d, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
      }
    }
    for (let i = 0; i < 8; i += 1) h[i] ^= v[i] ^ v[i + 8];
  }
  const out = Buffer.alloc(64);
  h.forEach((word, i) => out.writeBigUInt64LE(word, 8 * i));
  return out.subarray(0, length);
}

function hexOf(x) {
  // C's %a, as Python writes it.
  if (x === 0) return "0x0.0p+0";
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  const bits = view.getBigUint64(0);
  const exponent = Number((bits >> 52n) & 0x7ffn);
  const fraction = (bits & ((1n << 52n) - 1n)).toString(16).padStart(13, "0");
  const power = exponent === 0 ? -1022 : exponent - 1023;
  return `0x${exponent === 0 ? 0 : 1}.${fraction}p${power < 0 ? "-" : "+"}${Math.abs(power)}`;
}

function integers(list) {
  const bytes = Buffer.alloc(8 * list.length);
  list.forEach((number, i) => bytes.writeBigInt64LE(BigInt(number), 8 * i));
  return bytes;
}

function mixtureDigest({ datasets, batching, epoch_size, schedule }) {
  const exact = (amount) => (amount === null ? "None" : hexOf(amount));
  const lines = [`${batching} ${epoch_size}`];
  for (const { proportion, repeat, choose, choice, granularity, name } of datasets) {
    const amounts = `${exact(proportion)} ${exact(repeat)} ${choose ?? "None"}`;
    lines.push(`${amounts} ${choice} ${granularity} ${name}`);
  }
  const parts = [Buffer.from(lines.map((line) => `${line}\n`).join(""))];
  if (schedule) {
    const { starts, weights } = schedule.knots ? linear(schedule) : schedule;
    const doubles = Buffer.alloc(8 * starts.length * datasets.length);
    weights.flat().forEach((weight, i) => doubles.writeDoubleLE(weight, 8 * i));
    parts.push(integers(starts), doubles);
  }
  return blake2b(Buffer.concat(parts), 16, "headrace-mix");
}

function fingerprintOf({ fingerprint, mixture }) {
  if (!mixture) return Buffer.from(fingerprint, "hex");
  const all = mixture.datasets.map((dataset) => Buffer.from(dataset.fingerprint, "hex"));
  return blake2b(Buffer.concat(all), 16, "headrace-datas");
}

function varint(text) {
  const bytes = [];
  let number = BigInt(text);
  while (number > 127n) {
    bytes.push(Number(number & 127n) | 128);
    number >>= 7n;
  }
  return Buffer.from([...bytes, Number(number)]);
}

function tokenOf(token) {
  const { mixture, skips, transforms } = token;
  let flags = token.shuffle ? 1 : 0;
  const parts = [fingerprintOf(token)];
  if (mixture) {
    flags |= 2;
    parts.push(mixtureDigest(mixture));
  }
  if (skips.length) {
    flags |= 4;
    const ids = [...new Set(skips)].sort((a, b) => a - b);
    parts.push(blake2b(integers(ids), 16, "headrace-skips"));
  }
  if (transforms) {
    flags |= 8;
    parts.push(Buffer.from([transforms.length]), Buffer.from(transforms));
  }
  const options = ["version", "seed", "run_bytes", "shuffle_bytes", "shuffle_samples"];
  const places = ["epoch", "position", "global_batch_size", "step", "sample_count"];
  const numbers = [...options, "lanes", "unit", ...places].map((name) => varint(token[name]));
  const body = Buffer.concat([Buffer.from("hrt"), Buffer.from([2, flags]), ...parts, ...numbers]);
  return Buffer.concat([body, blake2b(body, 8, "headrace-token")]).toString("hex");
}

function answer(question) {
  if (question.token) return tokenOf(question.token);
  return question.datasets ? mixtureEpoch(question) : epochOf(question);
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(answer(JSON.parse(line))));
}
