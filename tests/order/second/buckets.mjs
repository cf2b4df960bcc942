// The length buckets of docs/order.md once more, in another language and another way: each position
// is placed by itself, from a sorted list of its lane's samples.
//
// Reads one question a line of JSON from standard input, and writes the answer as a line of JSON:
// {"seed", "epoch", "shuffle", "lanes", "unit", "units", "lengths"}: for each position of an epoch
// the position of the order that comes there. Seeds and epochs are strings, since JSON's numbers do
// not hold 63 bits.

import readline from 'node:readline';

const MASK = (1n << 64n) - 1n;
const SECOND = 6n, BUCKETS = 20n;

function mix(z) {
  z = ((z ^ (z >> 30n)) * 0xBF58476D1CE4E5B9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94D049BB133111EBn) & MASK;
  return z ^ (z >> 31n);
}

const absorb = (key, word) => mix(key ^ mix((word + 0x9E3779B97F4A7C15n) & MASK));
const draw = (key, counter) => mix(mix((key + counter) & MASK) ^ absorb(key, SECOND));

function sort(key, n) {
  const words = Array.from({ length: n }, (_, i) => [draw(key, BigInt(i)) >> 32n, i]);
  words.sort(([a, i], [b, j]) => (a < b ? -1 : a > b ? 1 : i - j));
  return words.map(([, i]) => i);
}

function answer({ seed, epoch, shuffle, lanes, unit, units, lengths }) {
  const full = Math.floor(lengths.length / unit), windows = Math.ceil(full / units);
  const positions = lengths.map((_, position) => position);
  for (let window = 0; window < windows; window++) {
    const first = Math.floor((window * full) / windows);
    const count = Math.floor(((window + 1) * full) / windows) - first;
    const key = [BigInt(seed), BigInt(epoch), BUCKETS, BigInt(window)].reduce(absorb, 0n);
    const bucketOf = shuffle ? sort(key, count) : Array.from({ length: count }, (_, i) => i);
    for (let lane = 0; lane < lanes; lane++) {
      const own = [];
      for (let at = first * unit; at < (first + count) * unit; at++) {
        if (Math.ceil((((at % unit) + 1) * lanes) / unit) - 1 === lane) own.push(at);
      }
      const sorted = own.map((at, place) => [lengths[at], place]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      const each = own.length / count;
      for (let place = 0; place < own.length; place++) {
        const bucket = bucketOf[Math.floor(place / each)];
        const members = sorted.slice(bucket * each, (bucket + 1) * each).map(([, at]) => at).sort((a, b) => a - b);
        positions[own[place]] = own[members[place % each]];
      }
    }
  }
  return positions;
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(answer(JSON.parse(line)))}\n`);
}
