// A local Hub with one repository and one model. It implements the endpoints that the window uses, and breaks one
// connection in the middle of the file. No tests here.

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { createServer } from 'node:http';
import { basename } from 'node:path';
import { pipeline } from 'node:stream/promises';

const commit = '0123456789abcdef0123456789abcdef01234567';

/** Serves `file` as the only model of `repository`. Returns the Hub's address and a function that closes it. */
export async function serveModel(repository, file) {
  const name = basename(file);
  const { size } = await stat(file);
  const hash = createHash('sha256');
  await pipeline(createReadStream(file), hash);
  const sha256 = hash.digest('hex');
  const described = {
    id: repository,
    sha: commit,
    gated: false,
    cardData: { license: 'apache-2.0' },
    siblings: [{ rfilename: name, size, blobId: commit, lfs: { sha256, size, pointerSize: 134 } }],
  };
  let broken = false;
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, 'http://hub').pathname);
    if (path === `/api/models/${repository}`) {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(described));
    } else if (path.startsWith(`/${repository}/resolve/`) && path.endsWith(`/${name}`)) {
      const start = Number(/^bytes=(\d+)-/.exec(request.headers.range ?? '')?.[1] ?? 0);
      response.writeHead(start > 0 ? 206 : 200, {
        'accept-ranges': 'bytes',
        'content-length': size - start,
        'content-range': `bytes ${start}-${size - 1}/${size}`,
        etag: `"${sha256}"`,
        'x-linked-etag': `"${sha256}"`,
        'x-linked-size': size,
        'x-repo-commit': commit,
      });
      if (request.method === 'HEAD') return response.end();
      const bytes = createReadStream(file, { start });
      bytes.pipe(response);
      if (!broken) {
        broken = true;
        let sent = 0;
        bytes.on('data', (chunk) => {
          sent += chunk.length;
          if (sent > size / 2) response.destroy();
        });
      }
      response.on('close', () => bytes.destroy());
    } else {
      response.writeHead(404, { 'x-error-code': 'RepoNotFound' }).end();
    }
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    endpoint: `http://127.0.0.1:${server.address().port}`,
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
