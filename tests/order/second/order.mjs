// Order version 3 once more, written from docs/order.md. The author of version 2 had seen nothing else
// of headrace; who brought it to version 3 knew the first implementation.
//
// Reads one question a line of JSON from standard input, and writes the answer as a line of JSON:
// - a spec, {"seed", "shuffle", ..., "epoch", "counts", "bytes", "blocks", "skips"}: the
//   sample ids of its epoch;
// - a mixture, {"seed", ..., "epoch", "datasets", "batching", "epoch_size", "schedule"}: the same;
// - a token, {"token": {...}, "mixture", "skips"}: its bytes, the digests worked out, as hex.
// Seeds, epochs and a token's numbers are strings, since JSON's do not hold 63 bits.

import readline from 'node:readline';

// ---------------------------------------------------------------- Words and numbers
// A word is held as two unsigned halves of 32 bits; results are left in HIGH and LOW.

const TWO32 = 4294967296;
const MASK64 = (1n << 64n) - 1n;
let HIGH = 0;
let LOW = 0;

const ceilDiv = (a, b) => Math.floor((a + b - 1) / b);
const floorDiv = (a, b) => Math.floor(a / b);
const floorMulDiv = (a, b, c) => Number(BigInt(a) * BigInt(b) / BigInt(c)); // a b // c, exactly
const minBig = (a, b) => (a < b ? a : b);
const maxBig = (a, b) => (a > b ? a : b);

function mulHigh32(a, b) {
  const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
  const low = a0 * b0;
  const middle = a1 * b0 + (low >>> 16);
  const cross = a0 * b1 + (middle % 65536);
  return a1 * b1 + Math.floor(middle / 65536) + Math.floor(cross / 65536);
}

function multiply(high, low, bHigh, bLow) {
  LOW = Math.imul(low, bLow) >>> 0;
  HIGH = (mulHigh32(low, bLow) + Math.imul(high, bLow) + Math.imul(low, bHigh)) >>> 0;
}

function add(high, low, bHigh, bLow) {
  const sum = low + bLow;
  LOW = sum >>> 0;
  HIGH = (high + bHigh + (sum >= TWO32 ? 1 : 0)) >>> 0;
}

// ---------------------------------------------------------------- Hash

const SECOND = 6n, DATASET = 7n, PHASE = 8n, SLOTS = 9n, CHOICE = 10n, SPAN = 11n;
const PHASES = 13n, COINS = 14n, DEAL = 15n, STEP = 16n, SKIPS = 17n;

function mix(high, low) {
  low ^= (low >>> 30) | (high << 2);
  high ^= high >>> 30;
  multiply(high >>> 0, low >>> 0, 0xBF58476D, 0x1CE4E5B9);
  low = LOW ^ ((LOW >>> 27) | (HIGH << 5));
  high = HIGH ^ (HIGH >>> 27);
  multiply(high >>> 0, low >>> 0, 0x94D049BB, 0x133111EB);
  low = LOW ^ ((LOW >>> 31) | (HIGH << 1));
  high = HIGH ^ (HIGH >>> 31);
  HIGH = high >>> 0;
  LOW = low >>> 0;
}

function absorb(key, word) {
  const bits = BigInt.asUintN(64, BigInt(word) + 0x9E3779B97F4A7C15n);
  mix(Number(bits >> 32n), Number(bits & 0xffffffffn));
  mix((HIGH ^ Number(key >> 32n)) >>> 0, (LOW ^ Number(key & 0xffffffffn)) >>> 0);
  return (BigInt(HIGH) << 32n) | BigInt(LOW);
}

const makeKey = (key, ...words) => words.reduce(absorb, BigInt(key));

// A key made ready for draws: its halves and those of key(key, SECOND).
class Drawer {
  constructor(key) {
    const second = absorb(key, SECOND);
    this.high = Number(key >> 32n);
    this.low = Number(key & 0xffffffffn);
    this.secondHigh = Number(second >> 32n);
    this.secondLow = Number(second & 0xffffffffn);
  }

  // Leaves draw(key, counter) in HIGH and LOW.
  draw(counterHigh, counterLow) {
    add(this.high, this.low, counterHigh, counterLow);
    mix(HIGH, LOW);
    mix((HIGH ^ this.secondHigh) >>> 0, (LOW ^ this.secondLow) >>> 0);
  }

  // The same for a counter below 2^53, and as a BigInt for any counter.
  at(counter) {
    this.draw(Math.floor(counter / TWO32), counter % TWO32);
  }

  word(counter) {
    const bits = BigInt.asUintN(64, BigInt(counter));
    this.draw(Number(bits >> 32n), Number(bits & 0xffffffffn));
    return (BigInt(HIGH) << 32n) | BigInt(LOW);
  }
}

// ---------------------------------------------------------------- Permutations

const shareOfHalf = (half, m) =>
  (m <= 2097152 ? Math.floor(half * m / TWO32) : Number(BigInt(half) * BigInt(m) >> 32n));

function sortPermutation(key, n) {
  if (n >= 1048576) throw new Error('a list this long is not sorted by this order');
  const drawer = new Drawer(key);
  const pairs = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    drawer.at(i);
    pairs[i] = HIGH * 1048576 + i;
  }
  pairs.sort();
  return Array.from(pairs, (pair) => pair % 1048576);
}

function leastWidth(n) {
  let width = Math.max(1, Math.floor(Math.sqrt(n)) - 1);
  while (width * width < n) width++;
  return width;
}

function networkPermutation(key, n) {
  const drawer = new Drawer(key);
  const width = leastWidth(n);
  const height = ceilDiv(n, width);
  const turnThrough = (p) => {
    let high = Math.floor(p / width), low = p % width;
    for (let turn = 0; turn < 12; turn++) {
      const other = turn % 2 === 0 ? high : low;
      drawer.draw(turn * 16777216 + Math.floor(other / TWO32), other % TWO32);
      if (turn % 2 === 0) low = (low + shareOfHalf(HIGH, width)) % width;
      else high = (high + shareOfHalf(HIGH, height)) % height;
    }
    return high * width + low;
  };
  return (place) => {
    let p = place;
    do p = turnThrough(p); while (p >= n);
    return p;
  };
}

// ---------------------------------------------------------------- Lanes

// The places of lane l of L before position p of an epoch of N positions in units of U.
function lanePlacesBefore(p, N, U, L, l) {
  const unit = Math.min(floorDiv(p, U), floorDiv(N, U));
  const whole = floorDiv((l + 1) * U, L) - floorDiv(l * U, L);
  const T = Math.min(U, N - unit * U);
  const first = floorDiv(l * T, L), end = floorDiv((l + 1) * T, L);
  return unit * whole + Math.min(Math.max(p - unit * U - first, 0), end - first);
}

const laneLength = (N, U, L, l) => lanePlacesBefore(N, N, U, L, l);

// What lane l has of each of several stretches laid end to end: deals n_0, n_1, ... samples.
function dealToLane(amounts, U, L, l) {
  const N = sum(amounts);
  let end = 0;
  return amounts.map((amount) => {
    const before = lanePlacesBefore(end, N, U, L, l);
    end += amount;
    return lanePlacesBefore(end, N, U, L, l) - before;
  });
}

// Lays the lists of the lanes into the positions of an epoch.
function interleaveLanes(N, U, lists) {
  const L = lists.length, answer = new Array(N), next = lists.map(() => 0);
  for (let start = 0; start < N; start += U) {
    const T = Math.min(U, N - start);
    for (let l = 0; l < L; l++) {
      const end = floorDiv((l + 1) * T, L);
      for (let slot = floorDiv(l * T, L); slot < end; slot++) answer[start + slot] = lists[l][next[l]++];
    }
  }
  return answer;
}

const sum = (list) => list.reduce((a, b) => a + b, 0);

// ---------------------------------------------------------------- Memory

function memoryOf(shards, spec) {
  const N = BigInt(sum(shards.counts));
  const B = shards.bytes.reduce((a, b) => a + BigInt(b), 0n);
  let M = N;
  if (BigInt(spec.shuffle_bytes) > 0n) M = minBig(M, BigInt(spec.shuffle_bytes) * N / maxBig(B, 1n));
  if (BigInt(spec.shuffle_samples) > 0n) M = minBig(M, BigInt(spec.shuffle_samples));
  return Number(maxBig(M, 1n));
}

// ---------------------------------------------------------------- Layout

function runSize(n, b, k, runBytes) {
  const s = Math.max(1, ceilDiv(b, n));
  const u = Math.min(k, n);
  const wanted = u > 0
    ? Math.max(1, floorDiv(runBytes + floorDiv(s * u, 2), s * u)) * u
    : Math.max(1, floorDiv(runBytes, s));
  const grain = Math.max(u, 1);
  return Math.min(n, Math.max(wanted, ceilDiv(n, 1048576 * grain) * grain));
}

// The runs of all shards: where each begins, its length, and its shard's bounds.
function cutIntoRuns(shards, runBytes) {
  const runs = { starts: [], lengths: [], halves: [], shardFirst: [], shardRuns: [], shardStarts: [], shardEnds: [] };
  let start = 0;
  shards.counts.forEach((n, index) => {
    if (n === 0) return;
    const size = runSize(n, shards.bytes[index], shards.blocks[index], runBytes);
    runs.shardFirst.push(runs.starts.length);
    runs.shardRuns.push(ceilDiv(n, size));
    runs.shardStarts.push(start);
    runs.shardEnds.push(start + n);
    for (let done = 0; done < n; done += size) {
      runs.starts.push(start + done);
      const length = Math.min(size, n - done), u = Math.min(shards.blocks[index], n);
      runs.lengths.push(length);
      runs.halves.push(u > 0 ? Math.min(length, ceilDiv(ceilDiv(length, u), 2) * u) : length);
    }
    start += n;
  });
  return runs;
}

// Pieces as pairs of the first run and the number of runs, in storage order.
function cutIntoPieces(runs) {
  const pieces = [];
  const few = runs.starts.length <= 1048576;
  runs.shardRuns.forEach((count, shard) => {
    let first = runs.shardFirst[shard], left = count;
    while (left > 0) {
      let m = left;
      if (few) for (m = 16; m > left;) m /= 2;
      pieces.push([first, m]);
      first += m;
      left -= m;
    }
  });
  return pieces;
}

function makeCoin(E) {
  const drawer = new Drawer(makeKey(E, COINS));
  return (level, x) => {
    const counter = Math.floor(x / 64), bit = x % 64;
    drawer.draw(level * 16777216 + Math.floor(counter / TWO32), counter % TWO32);
    return bit < 32 ? (LOW >>> bit) & 1 : (HIGH >>> (bit - 32)) & 1;
  };
}

function runAtPlace(place, first, m, coin) {
  let low = first, size = m, level = 0, t = place;
  while (size > 1) {
    const half = floorDiv(t, 2);
    const side = (t % 2) ^ coin(level, low + half);
    let left = floorDiv(size, 2);
    if (size % 2 === 1) left = left + 1 - coin(level, low + floorDiv(size, 2));
    if (side === 1) { low += left; size -= left; } else size = left;
    t = half;
    level++;
  }
  return low;
}

function timesMultiplier(E) {
  const w = new Drawer(makeKey(E, PHASES)).word(0);
  let above = 0n, below = 1n;
  for (let i = 47n; i >= 0n; i--) [above, below] = [below, (1n + ((w >> i) & 1n)) * below + above];
  return (above << 32n) / below | 1n;
}

// The runs in the order of their times.
function runsInOrder(runs, E) {
  const coin = makeCoin(E), A = timesMultiplier(E), phases = new Drawer(makeKey(E, PHASES));
  const numbers = new Map(), timed = [];
  for (const [first, m] of cutIntoPieces(runs)) {
    const i = numbers.get(m) ?? 0;
    numbers.set(m, i + 1);
    const step = (1n << 62n) / BigInt(m);
    const turned = (BigInt(i) * A + (phases.word(m) >> 32n)) & 0xffffffffn;
    for (let t = 0; t < m; t++) {
      timed.push([BigInt(t) * step + turned * (step >> 32n), m, runAtPlace(t, first, m, coin)]);
    }
  }
  timed.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1]));
  return timed.map((entry) => entry[2]);
}

// The layout as a function from an offset to a sample.
function makeLayout(pass) {
  if (!pass.shuffle) return (offset) => offset;
  const atOnce = pass.lanes === 1 && pass.memory === pass.total;
  if (atOnce && lanePlan(pass.total, pass.memory, pass.ramp).P === 0) return (offset) => offset;
  const list = new Float64Array(pass.total);
  let next = 0;
  for (const run of runsInOrder(pass.runs, pass.E)) {
    const start = pass.runs.starts[run], length = pass.runs.lengths[run];
    for (let i = 0; i < length; i++) list[next++] = start + i;
  }
  return (offset) => list[offset];
}

// ---------------------------------------------------------------- Steps

// The sizes of a lane's cohorts: slices, groups and the numbers that lines draw from.
function lanePlan(n, M, ramp) {
  let d = 1;
  while (d < 17 && (d + 1) * (d + 3) <= M) d++;
  const g = Math.max(1, floorDiv(floorDiv(2 * M, 2 * d + 3), d));
  const R = floorDiv(Math.min(n, M), 2), ramps = [];
  let k = 0;
  if (ramp > 0) while (ramp * 2 ** (k + 1) <= R) k++;
  if (k > 0) {
    const b = floorDiv(R, 2 ** k);
    ramps.push(b);
    for (let i = 0; i < k; i++) ramps.push(b * 2 ** i);
  }
  const P = sum(ramps);
  const W = n - P <= M ? 0 : g * d * (d - 1) / 2;
  return { d, g, ramps, P, W };
}

const greatestCommon = (a, b) => (b === 0 ? a : greatestCommon(b, a % b));

// The numbers in [1, D] without a common factor with D.
const slopesOf = (D) => Array.from({ length: D }, (_, i) => i + 1).filter((s) => greatestCommon(s, D) === 1);

// The slices of a cohort, each a list of offsets in the order of groups.
function dealCohort({ start, slices: D, groups }, drawer) {
  const slices = Array.from({ length: D }, () => []), slopes = slopesOf(D);
  for (let x = start; x < start + D * groups; x += D) {
    drawer.at(x);
    const slope = slopes[shareOfHalf(HIGH, slopes.length)], turn = shareOfHalf(LOW, D);
    for (let a = 0; a < D; a++) slices[(slope * a + turn) % D].push(x + a);
  }
  return slices;
}

// The cohorts that fit, with the step of their first slice; and where the rest begins.
function wholeCohorts(n, M, { d, g, ramps, P, W }) {
  const cohorts = [];
  let start = 0, full = 0;
  const push = (slices, groups, first) => {
    cohorts.push({ start, slices, groups, first });
    start += slices * groups;
  };
  ramps.forEach((groups, i) => push(1, groups, i));
  if (n - P > M) {
    for (let slices = 1; slices < d; slices++) push(slices, g, ramps.length);
    for (; start + d * g <= n; full++) push(d, g, ramps.length + full);
  }
  return { cohorts, last: ramps.length + full, rest: start };
}

function stepLists(n, M, E, lane, plan) {
  const { cohorts, last, rest } = wholeCohorts(n, M, plan);
  const steps = Array.from({ length: last + 1 }, () => []);
  const drawer = new Drawer(makeKey(E, DEAL, lane));
  for (const cohort of cohorts) {
    dealCohort(cohort, drawer).forEach((slice, i) => {
      const step = steps[Math.min(cohort.first + i, last)];
      for (const offset of slice) step.push(offset);
    });
  }
  for (let offset = rest; offset < n; offset++) steps[last].push(offset);
  return steps;
}

// The offsets of a lane of n samples at its places, as a function of the place.
function lanePlaces(n, pass, lane) {
  if (!pass.shuffle) return (p) => p;
  const steps = stepLists(n, pass.memory, pass.E, lane, lanePlan(n, pass.memory, pass.ramp));
  const firsts = [], openers = steps.map((step, number) => {
    const key = makeKey(pass.E, STEP, lane, number), T = step.length;
    let slotOf = null;
    return (p) => {
      if (!slotOf) {
        if (T <= pass.sortLimit) { const sorted = sortPermutation(key, T); slotOf = (place) => sorted[place]; }
        else slotOf = networkPermutation(key, T);
      }
      return step[slotOf(p)];
    };
  });
  const stepAt = new Int32Array(n);
  let first = 0;
  steps.forEach((step, number) => {
    firsts.push(first);
    stepAt.fill(number, first, first + step.length);
    first += step.length;
  });
  return (p) => openers[stepAt[p]](p - firsts[stepAt[p]]);
}

// ---------------------------------------------------------------- Skips

function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

function upperBound(sorted, value) {
  const at = lowerBound(sorted, value);
  return at < sorted.length && sorted[at] === value ? at + 1 : at;
}

// The substitute of every sample in a pass; the identity for kept ones.
function makeSubstitute(pass, skips) {
  if (skips.length === 0) return (x) => x;
  const skipped = new Set(skips);
  const kept = [];
  for (let x = 0; x < pass.total; x++) if (!skipped.has(x)) kept.push(x);
  if (kept.length === 0) throw new Error('all samples are skipped');
  const drawer = new Drawer(makeKey(pass.E, SKIPS));
  const { starts, lengths, shardStarts, shardEnds } = pass.runs;
  return (x) => {
    if (!skipped.has(x)) return x;
    const run = upperBound(starts, x) - 1, shard = upperBound(shardStarts, x) - 1;
    const ranges = [[starts[run], starts[run] + lengths[run]], [shardStarts[shard], shardEnds[shard]], [0, pass.total]];
    for (const [first, end] of ranges) {
      const before = lowerBound(kept, first), k = lowerBound(kept, end) - before;
      if (k > 0) return kept[before + Number(drawer.word(x) % BigInt(k))];
    }
  };
}

// ---------------------------------------------------------------- An epoch of a dataset

function makePass(shards, runs, spec, memory, E, number, sortLimit) {
  const total = sum(shards.counts);
  const ramp = spec.ramp && number === 0 ? Math.max(1, floorDiv(8 * total, Math.max(1, runs.starts.length))) : 0;
  const pass = { shuffle: spec.shuffle, lanes: spec.lanes, memory, E, sortLimit, runs, total, ramp };
  pass.layout = makeLayout(pass);
  pass.substitute = makeSubstitute(pass, shards.skips);
  return pass;
}

// Place p of the lane that has n samples of the layout from `start` on.
function openLane(pass, lane, start, n) {
  const offsetAt = lanePlaces(n, pass, lane), sampleAt = laneLayout(pass, start, n);
  return (p) => pass.substitute(sampleAt(offsetAt(p)));
}

// The lane's stretch of the layout, in whose opening first halves of runs come before second ones.
function laneLayout(pass, start, n) {
  const { P, W } = lanePlan(n, pass.memory, pass.ramp), { starts, halves } = pass.runs;
  if (!pass.shuffle || W === 0) return (offset) => pass.layout(start + offset);
  const firsts = [], seconds = [];
  for (let offset = P; offset < P + 2 * W; offset++) {
    const sample = pass.layout(start + offset), run = upperBound(starts, sample) - 1;
    (sample - starts[run] < halves[run] ? firsts : seconds).push(sample);
  }
  const opening = [...firsts, ...seconds];
  return (offset) => (offset >= P && offset < P + 2 * W ? opening[offset - P] : pass.layout(start + offset));
}

// ---------------------------------------------------------------- Filters

// A dataset as if it held the samples that its filter keeps alone, with their ids.
function keepOf(dataset) {
  if (!dataset.kept) return dataset;
  const counts = [], bytes = [];
  let start = 0, next = 0;
  dataset.counts.forEach((n, shard) => {
    const b = dataset.bytes[shard], k = dataset.blocks[shard], first = next;
    const s = n === 0 ? 1 : Math.max(1, ceilDiv(b, n));
    const u = k > 0 ? Math.min(k, n) : Math.max(1, floorDiv(2 ** 18, s));
    const stretches = new Set();
    for (; next < dataset.kept.length && dataset.kept[next] < start + n; next++) {
      stretches.add(floorDiv(dataset.kept[next] - start, u));
    }
    counts.push(next - first);
    bytes.push(Math.min(b, stretches.size * u * s));
    start += n;
  });
  const skipped = new Set(dataset.skips), skips = [];
  dataset.kept.forEach((id, number) => { if (skipped.has(id)) skips.push(number); });
  return { ...dataset, counts, bytes, blocks: counts.map(() => 0), skips, keptIds: dataset.kept, stored: sum(dataset.counts) };
}

function orderOfSpec(whole) {
  const spec = keepOf(whole);
  const N = sum(spec.counts), L = spec.lanes, E = makeKey(0, spec.seed, spec.epoch);
  const runs = cutIntoRuns(spec, spec.run_bytes);
  const pass = makePass(spec, runs, spec, memoryOf(spec, spec), E, BigInt(spec.epoch) === 0n ? 0 : 1, 4096);
  const lists = [];
  let start = 0;
  for (let lane = 0; lane < L; lane++) {
    const n = laneLength(N, spec.unit, L, lane);
    const sampleAt = openLane(pass, lane, start, n);
    lists.push(Array.from({ length: n }, (_, p) => sampleAt(p)));
    start += n;
  }
  const numbers = interleaveLanes(N, spec.unit, lists);
  return spec.keptIds ? Array.from(numbers, (number) => spec.keptIds[number]) : numbers;
}

// ---------------------------------------------------------------- Mixtures: amounts and weights

// Rounds a double to the nearest integer, to even.
function roundEven(x) {
  const low = Math.floor(x), rest = x - low;
  if (rest !== 0.5) return rest < 0.5 ? low : low + 1;
  return low % 2 === 0 ? low : low + 1;
}

function linearPieces(knots, weights) {
  const pieces = { starts: [], weights: [] };
  const push = (start, list) => {
    pieces.starts.push(start);
    pieces.weights.push(list);
  };
  for (let j = 0; j + 1 < knots.length; j++) {
    const length = knots[j + 1] - knots[j];
    const count = Math.max(1, Math.min(256, Math.floor(length / 16)));
    for (let i = 0; i < count; i++) {
      const start = knots[j] + floorMulDiv(length, i, count);
      push(start, weights[j].map((w, d) => w + (weights[j + 1][d] - w) * ((i + 0.5) / count)));
    }
  }
  push(knots.at(-1), weights.at(-1));
  return pieces;
}

// The schedule of a mixture in pieces, or null where there is none.
function schedulePieces(mixture) {
  const schedule = mixture.schedule;
  if (!schedule) return null;
  return schedule.knots ? linearPieces(schedule.knots, schedule.weights) : schedule;
}

function weightIntegers(weights) {
  const factor = Math.floor(2 ** 40 / weights.length) / Math.max(...weights);
  return weights.map((w) => (w === 0 ? 0n : maxBig(1n, BigInt(roundEven(w * factor)))));
}

function apportion(n, integers) {
  const total = integers.reduce((a, b) => a + b, 0n);
  let before = 0n;
  return integers.map((v) => {
    const first = BigInt(n) * before / total;
    before += v;
    return Number(BigInt(n) * before / total - first);
  });
}

function weightPieces(mixture) {
  const schedule = schedulePieces(mixture);
  const pieces = schedule ?? (mixture.datasets.some((d) => d.proportion !== null)
    ? { starts: [0], weights: [mixture.datasets.map((d) => d.proportion ?? 0)] } : null);
  if (!pieces) return null;
  return pieces.starts.map((start, i) => ({ start, integers: weightIntegers(pieces.weights[i]) }));
}

function amountOf(dataset) {
  const n = sum(dataset.counts);
  if (dataset.choose !== null) return dataset.choose;
  return dataset.repeat !== null ? roundEven(dataset.repeat * n) : n;
}

// ---------------------------------------------------------------- Mixtures: fixed choices

// The chosen samples of a shard that gives c of its n samples, in the shard.
function chosenOfShard(n, c, granularity, key) {
  const groups = ceilDiv(c, granularity), drawer = new Drawer(key), chosen = [];
  for (let k = 0; k < groups; k++) {
    const low = floorMulDiv(k, n - c, groups), high = floorMulDiv(k + 1, n - c, groups);
    const moved = low + Number(drawer.word(k) % BigInt(high - low + 1));
    for (let i = floorMulDiv(k, c, groups); i < floorMulDiv(k + 1, c, groups); i++) chosen.push(i + moved);
  }
  return chosen;
}

// The dataset as the rest of the mixture sees it, with the ids of its samples.
function chooseFixed(dataset, c, key) {
  const n = sum(dataset.counts);
  const plain = { counts: dataset.counts, bytes: dataset.bytes, blocks: dataset.blocks, skips: dataset.skips, ids: null };
  if (dataset.choice !== 'fixed' || c >= n) return plain;
  const counts = apportion(c, dataset.counts.map(BigInt)), ids = [];
  let start = 0;
  dataset.counts.forEach((samples, shard) => {
    const chosen = chosenOfShard(samples, counts[shard], dataset.granularity, makeKey(key, CHOICE, shard));
    for (const x of chosen) ids.push(start + x);
    start += samples;
  });
  const bytes = dataset.bytes.map((b, i) => {
    const samples = dataset.counts[i];
    return samples === 0 ? b : Math.min(b, (floorDiv(b, samples) + 1) * counts[i]);
  });
  const skipped = new Set(dataset.skips), skips = [];
  ids.forEach((id, number) => { if (skipped.has(id)) skips.push(number); });
  return { counts, bytes, blocks: counts.map(() => 0), skips, ids };
}

// ---------------------------------------------------------------- Mixtures: memory

function memoryWeights(amounts, pieces) {
  if (!pieces) return amounts.map(BigInt);
  const weights = pieces[0].integers.map(() => 0n);
  for (const { integers } of pieces) {
    const total = integers.reduce((a, b) => a + b, 0n);
    integers.forEach((v, d) => {
      if (v > 0n) weights[d] = maxBig(weights[d], maxBig((v << 20n) / total, 1n));
    });
  }
  return weights;
}

function memoriesOfMixture(mixture, sets, weights) {
  const N = sets.map((set) => BigInt(sum(set.counts)));
  const B = sets.map((set) => set.bytes.reduce((a, b) => a + BigInt(b), 0n));
  const W = weights.reduce((a, b) => a + b, 0n);
  const Q = weights.reduce((a, w, d) => a + w * B[d] / maxBig(N[d], 1n), 0n);
  const limits = [];
  if (BigInt(mixture.shuffle_bytes) > 0n) limits.push(BigInt(mixture.shuffle_bytes) * W / maxBig(Q, 1n));
  if (BigInt(mixture.shuffle_samples) > 0n) limits.push(BigInt(mixture.shuffle_samples));
  const limit = limits.length ? limits.reduce(minBig) : null;
  return N.map((n, d) =>
    Number(maxBig(1n, limit === null ? n : minBig(n, limit * weights[d] / maxBig(W, 1n)))));
}

// ---------------------------------------------------------------- Mixtures: spans

// The positions [first, end) of an epoch that each piece covers, moved down to whole units.
function piecesOfEpoch(pieces, epoch, length, U) {
  const start = epoch * length, covered = [];
  const moved = (at) => {
    if (at <= start) return 0;
    if (at >= start + length) return length;
    return floorDiv(at - start, U) * U;
  };
  pieces.forEach((piece, number) => {
    const first = moved(piece.start);
    const end = number + 1 < pieces.length ? moved(pieces[number + 1].start) : length;
    if (end > first) covered.push({ number, first, end, integers: piece.integers });
  });
  return covered;
}

// Splits a span of more than 2^30 places; gives the draws of each split.
function splitDraws(draws) {
  const H = ceilDiv(sum(draws), 2 ** 30);
  const upTo = (x, h) => floorDiv(x + H - 1 - h, H); // the numbers below x that are h modulo H
  return Array.from({ length: H }, (_, h) => {
    let end = 0;
    return draws.map((a) => { end += a; return upTo(end, h) - upTo(end - a, h); });
  });
}

// The spans of a lane in an epoch: each with its draws of every dataset, its piece and its split.
function spansOfEpoch(plan, epoch, lane) {
  const spans = [];
  const push = (draws, piece) =>
    splitDraws(draws).forEach((share, split) => spans.push({ draws: share, piece, split, epoch }));
  const { U, L, length } = plan;
  if (!plan.pieces) {
    push(plan.perDataset ? plan.amounts.map((a) => a / U) : dealToLane(plan.amounts, U, L, lane), 0);
    return spans;
  }
  for (const { number, first, end, integers } of piecesOfEpoch(plan.pieces, epoch, length, U)) {
    const places = plan.perDataset ? (end - first) / U
      : lanePlacesBefore(end, length, U, L, lane) - lanePlacesBefore(first, length, U, L, lane);
    push(apportion(places, integers), number);
  }
  return spans;
}

// ---------------------------------------------------------------- Mixtures: draws in time

function drawsInTime(draws, S, stratified) {
  const phases = new Drawer(makeKey(S, PHASE)), timed = new BigUint64Array(sum(draws));
  let next = 0;
  draws.forEach((a, d) => {
    const s = (1n << 62n) / BigInt(Math.max(a, 1));
    let time = stratified ? s / 2n : phases.word(d) % s;
    for (let k = 0; k < a; k++, time += s) timed[next++] = ((time >> 20n) << 20n) | BigInt(d);
  });
  timed.sort();
  return Array.from(timed, (entry) => Number(entry & 0xfffffn));
}

// The datasets at the places of a span.
function datasetsOfSpan(plan, span, lane) {
  const S = makeKey(0, plan.seed, SPAN, span.epoch, span.piece, span.split, lane);
  const sequence = drawsInTime(span.draws, S, plan.batching === 'stratified');
  const size = plan.batching === 'random' ? 16384 : plan.batching === 'per_dataset' ? 1024 : plan.slots(lane);
  const answer = [];
  for (let b = 0; b * size < sequence.length; b++) {
    const n = Math.min(size, sequence.length - b * size);
    for (const draw of sortPermutation(makeKey(S, SLOTS, b), n)) answer.push(sequence[b * size + draw]);
  }
  return answer;
}

// The pairs of dataset and draw at the places of an epoch, for a lane or, per dataset, for the units.
function drawsOfEpoch(plan, epoch, lane) {
  const next = plan.sets.map(() => 0);
  for (let before = 0; before < epoch; before++) {
    for (const span of spansOfEpoch(plan, before, lane)) span.draws.forEach((a, d) => { next[d] += a; });
  }
  const places = [];
  for (const span of spansOfEpoch(plan, epoch, lane)) {
    for (const d of datasetsOfSpan(plan, span, lane)) places.push([d, next[d]++]);
  }
  return places;
}

// ---------------------------------------------------------------- Mixtures: from draws to samples

// A function from (dataset, draw, lane) to the sample id in the mixture.
function makeSampler(plan, mixture) {
  const lengths = plan.sets.map((set) => sum(set.counts));
  const dealt = Array.from({ length: plan.L }, (_, lane) => dealToLane(lengths, plan.U, plan.L, lane));
  const bases = [], passes = new Map(), lanes = new Map();
  mixture.datasets.reduce((base, dataset) => { bases.push(base); return base + (dataset.stored ?? sum(dataset.counts)); }, 0);
  const passOf = (d, number) => {
    const name = `${d} ${number}`;
    if (!passes.has(name)) {
      passes.set(name, makePass(plan.sets[d], plan.runs[d], mixture, plan.memories[d], makeKey(plan.keys[d], number), number, 64));
    }
    return passes.get(name);
  };
  const laneOf = (d, number, lane, n) => {
    const name = `${d} ${number} ${lane}`;
    if (!lanes.has(name)) {
      let start = 0;
      if (dealt[lane][d] > 0) for (let l = 0; l < lane; l++) start += dealt[l][d];
      lanes.set(name, openLane(passOf(d, number), lane, start, n));
    }
    return lanes.get(name);
  };
  return (d, draw, lane) => {
    const n = dealt[lane][d] || lengths[d];
    const sample = laneOf(d, mixture.shuffle ? floorDiv(draw, n) : 0, lane, n)(draw % n);
    const number = plan.sets[d].ids ? plan.sets[d].ids[sample] : sample, kept = mixture.datasets[d].keptIds;
    return bases[d] + (kept ? kept[number] : number);
  };
}

function planMixture(mixture) {
  const U = mixture.unit, L = mixture.lanes, perDataset = mixture.batching === 'per_dataset';
  const whole = (n) => (perDataset ? floorDiv(n, U) * U : n);
  const pieces = weightPieces(mixture), R = makeKey(0, mixture.seed);
  const keys = mixture.datasets.map((_, d) => makeKey(R, DATASET, d));
  const amounts = mixture.datasets.map((dataset) => whole(amountOf(dataset)));
  const sets = mixture.datasets.map((dataset, d) => chooseFixed(dataset, amounts[d], keys[d]));
  const samples = sum(mixture.datasets.map((dataset) => sum(dataset.counts)));
  const length = pieces ? whole(mixture.epoch_size || samples) : sum(amounts);
  return {
    seed: mixture.seed, batching: mixture.batching, U, L, perDataset, pieces, keys, amounts, sets, length,
    runs: sets.map((set) => cutIntoRuns(set, mixture.run_bytes)),
    memories: memoriesOfMixture(mixture, sets, memoryWeights(amounts, pieces)),
    slots: (lane) => floorDiv((lane + 1) * U, L) - floorDiv(lane * U, L),
  };
}

function orderOfMixture(whole) {
  const mixture = { ...whole, datasets: whole.datasets.map(keepOf) };
  const plan = planMixture(mixture), epoch = Number(mixture.epoch);
  const sampler = makeSampler(plan, mixture);
  const units = plan.perDataset ? drawsOfEpoch(plan, epoch, 0) : null;
  const lists = Array.from({ length: plan.L }, (_, lane) => {
    if (!units) return drawsOfEpoch(plan, epoch, lane).map(([d, draw]) => sampler(d, draw, lane));
    const w = plan.slots(lane), list = [];
    for (const [d, k] of units) for (let s = 0; s < w; s++) list.push(sampler(d, k * w + s, lane));
    return list;
  });
  return interleaveLanes(plan.length, plan.U, lists);
}

// ---------------------------------------------------------------- BLAKE2b (RFC 7693), with personalization

const BLAKE_IV = [0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n];
const BLAKE_SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0]];
const BLAKE_MIXES = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];

const rotateRight = (x, n) => ((x >> n) | (x << (64n - n))) & MASK64;

function blakeCompress(h, block, counter, last) {
  const m = Array.from({ length: 16 }, (_, i) => block.readBigUInt64LE(8 * i));
  const v = [...h, ...BLAKE_IV];
  v[12] ^= BigInt(counter);
  if (last) v[14] ^= MASK64;
  for (let round = 0; round < 12; round++) {
    const sigma = BLAKE_SIGMA[round % 10];
    BLAKE_MIXES.forEach(([a, b, c, d], i) => {
      v[a] = (v[a] + v[b] + m[sigma[2 * i]]) & MASK64;
      v[d] = rotateRight(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & MASK64;
      v[b] = rotateRight(v[b] ^ v[c], 24n);
      v[a] = (v[a] + v[b] + m[sigma[2 * i + 1]]) & MASK64;
      v[d] = rotateRight(v[d] ^ v[a], 16n);
      v[c] = (v[c] + v[d]) & MASK64;
      v[b] = rotateRight(v[b] ^ v[c], 63n);
    });
  }
  return h.map((word, i) => word ^ v[i] ^ v[i + 8]);
}

function blake2b(data, size, personalization) {
  const parameters = Buffer.alloc(64);
  parameters[0] = size;
  parameters[2] = 1;
  parameters[3] = 1;
  parameters.write(personalization, 48, 'ascii');
  let h = BLAKE_IV.map((word, i) => word ^ parameters.readBigUInt64LE(8 * i));
  for (let at = 0; at === 0 || at < data.length; at += 128) {
    const block = Buffer.alloc(128), last = at + 128 >= data.length;
    data.copy(block, 0, at, Math.min(at + 128, data.length));
    h = blakeCompress(h, block, Math.min(at + 128, data.length), last);
  }
  const out = Buffer.alloc(64);
  h.forEach((word, i) => out.writeBigUInt64LE(word, 8 * i));
  return out.subarray(0, size);
}

// ---------------------------------------------------------------- Tokens

function words64(list) {
  const bytes = Buffer.alloc(8 * list.length);
  list.forEach((value, i) => bytes.writeBigUInt64LE(BigInt(value), 8 * i));
  return bytes;
}

function doubles(list) {
  const bytes = Buffer.alloc(8 * list.length);
  list.forEach((value, i) => bytes.writeDoubleLE(value, 8 * i));
  return bytes;
}

// A double as Python's float.hex writes it, or None.
function hexDouble(value) {
  if (value === null || value === undefined) return 'None';
  const bits = doubles([value]).readBigUInt64LE(0);
  const sign = bits >> 63n ? '-' : '', exponent = Number((bits >> 52n) & 0x7ffn), fraction = bits & ((1n << 52n) - 1n);
  if (exponent === 0 && fraction === 0n) return `${sign}0x0.0p+0`;
  const power = exponent === 0 ? -1022 : exponent - 1023;
  const digits = fraction.toString(16).padStart(13, '0');
  return `${sign}0x${exponent === 0 ? 0 : 1}.${digits}p${power < 0 ? '-' : '+'}${Math.abs(power)}`;
}

function mixtureDigest(mixture) {
  const lines = [`${mixture.batching} ${mixture.epoch_size}`];
  for (const d of mixture.datasets) {
    lines.push([hexDouble(d.proportion), hexDouble(d.repeat), d.choose ?? 'None', d.choice, d.granularity, d.name].join(' '));
  }
  const parts = [Buffer.from(lines.map((line) => `${line}\n`).join(''), 'utf8')];
  const schedule = schedulePieces(mixture);
  if (schedule) parts.push(words64(schedule.starts), doubles(schedule.weights.flat()));
  return blake2b(Buffer.concat(parts), 16, 'headrace-mix');
}

// A filter keeps the samples of `kept` of `samples`.
function keptDigest({ samples, kept }) {
  const bits = Buffer.alloc(Math.ceil(samples / 8));
  for (const id of kept) bits[id >> 3] |= 1 << (id & 7);
  return blake2b(Buffer.concat([words64([samples]), bits]), 16, 'headrace-kept');
}

// What a token holds: of one dataset its filter's, of a mixture one of all.
function keptOfToken(kept) {
  if (!Array.isArray(kept)) return keptDigest(kept);
  return blake2b(Buffer.concat(kept.map((each) => (each ? keptDigest(each) : Buffer.alloc(16)))), 16, 'headrace-kepts');
}

const skipsDigest = (skips) => blake2b(words64([...skips].sort((a, b) => a - b)), 16, 'headrace-skips');

function varint(value) {
  const bytes = [];
  let left = BigInt(value);
  for (; left >= 128n; left >>= 7n) bytes.push(Number(left & 127n) | 128);
  bytes.push(Number(left));
  return Buffer.from(bytes);
}

function tokenHex(token) {
  const skips = token.skips ?? [];
  const stages = [
    ['mixture', token.mixture ? mixtureDigest(token.mixture).toString('hex') : ''],
    ['filter', token.kept ? keptOfToken(token.kept).toString('hex') : ''],
    ['skips', skips.length ? skipsDigest(skips).toString('hex') : ''],
    ['buckets', token.buckets ? [token.buckets, token.lengths].filter(Boolean).join(' ') : ''],
    ['transforms', token.transforms ?? ''],
  ].filter(([, text]) => text);
  const flags = (token.shuffle ? 1 : 0) | (token.ramp ? 2 : 0);
  const parts = [Buffer.from('hrt', 'ascii'), Buffer.from([3, flags]), Buffer.from(token.fingerprint, 'hex')];
  parts.push(Buffer.from([stages.length]));
  for (const field of stages.flat()) parts.push(Buffer.from([field.length]), Buffer.from(field, 'ascii'));
  for (const name of ['version', 'seed', 'run_bytes', 'shuffle_bytes', 'shuffle_samples', 'lanes', 'unit',
    'epoch', 'position', 'global_batch_size', 'step', 'sample_count']) parts.push(varint(token[name]));
  const body = Buffer.concat(parts);
  return Buffer.concat([body, blake2b(body, 8, 'headrace-token')]).toString('hex');
}

// ---------------------------------------------------------------- Questions and answers

function answer(question) {
  if (question.token) return tokenHex(question.token);
  return question.datasets ? orderOfMixture(question) : orderOfSpec(question);
}

function writeLine(text) {
  return new Promise((done) => process.stdout.write(`${text}\n`, done));
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    if (line.trim()) await writeLine(JSON.stringify(answer(JSON.parse(line))));
  }
}

if (process.env.ORDER_SELFTEST) {
  const hex = (x) => x.toString(16);
  console.log(hex(makeKey(0, 0)), hex(makeKey(0, 7)), hex(makeKey(0, 7, 0)), hex(makeKey(0, MASK64, 1, 2, 3)));
  const dr = new Drawer(makeKey(0, 7));
  console.log([0, 1, 2, 3].map((i) => hex(dr.word(i))), hex(new Drawer(MASK64).word(MASK64)));
  console.log(sortPermutation(makeKey(0, 7), 10).join(' '));
  const f = networkPermutation(makeKey(0, 7), 100), g = networkPermutation(makeKey(0, 7), 1e12);
  console.log([0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(f).join(' '), [0, 1, 2].map(g).join(' '));
} else {
  await main();
}
