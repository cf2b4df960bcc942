// k6: server streaming with thresholds, for pipelines that have k6 already.
//
//     k6 run -e TARGET=localhost:50051 -e DATASET=flights --vus 8 --duration 30s \
//         tests/load/read_batches.k6.js
//
// k6 shows batches and bytes a second and the time between two messages, and fails (exit code 99)
// when a threshold is crossed. It decodes each message in JavaScript, so it is the bottleneck long
// before the server is: take it for "does it hold up", not for "how fast is it".
import { Client, Stream } from 'k6/net/grpc';
import { check } from 'k6';
import { Counter, Trend } from 'k6/metrics';

const client = new Client();
client.load([__ENV.PROTO || '../../proto'], 'headrace/v1/shard_service.proto');

const batches = new Counter('headrace_batches');
const samples = new Counter('headrace_samples');
const betweenBatches = new Trend('headrace_between_batches', true);

export const options = {
  thresholds: {
    checks: ['rate==1.0'],
    headrace_batches: ['count>0'],
    headrace_between_batches: ['p(99)<5000'],
  },
};

export default function () {
  client.connect(__ENV.TARGET, { plaintext: true, maxReceiveSize: 8 * 1024 * 1024 });
  const stream = new Stream(client, 'headrace.v1.ShardService/ReadBatches');
  let last = Date.now();
  let ended = false;
  stream.on('data', (message) => {
    if (message.batch) {
      const now = Date.now();
      betweenBatches.add(now - last);
      last = now;
      batches.add(1);
      samples.add(message.batch.sampleCount);
    }
    if (message.epochEnd) {
      ended = true;
    }
  });
  stream.on('error', (error) => {
    check(error, { 'the stream did not fail': () => false });
  });
  stream.on('end', () => {
    check(ended, { 'the epoch ended with its counts': (seen) => seen });
    client.close();
  });
  stream.write({
    dataset: __ENV.DATASET,
    order: { seed: __VU, shuffle: true },
    globalBatchSize: Number(__ENV.BATCH || 256),
    worldSize: 1,
    epochStart: { epoch: 0 },
    epochCount: 1,
  });
  stream.end();
}
