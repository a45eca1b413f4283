// A provider of identities with three people. Lines of standard input are commands:
// `sign` has a token made of claims (JSON), `rotate` replaces its key. Answers begin with `> `.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { generateKeyPairSync, createPrivateKey, sign } from 'node:crypto';
import Provider from 'oidc-provider';

const [port, redirect, lifetime] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const groups = { anna: ['acme-team'], olga: ['operators'], nora: [] };
let number = 0;
let key;

function serve() {
  number += 1;
  key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  Object.assign(key, { kid: `key-${number}`, alg: 'RS256', use: 'sig' });
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'tidegate', client_secret: 'the-client-secret', redirect_uris: [redirect],
      response_types: ['code'], grant_types: ['authorization_code'],
    }, {
      client_id: 'tidegate-terminal', application_type: 'native', token_endpoint_auth_method: 'none',
      redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'],
      grant_types: ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'],
    }],
    features: { deviceFlow: { enabled: true } },
    ttl: { IdToken: () => Number(lifetime) },
    jwks: { keys: [key] },
    claims: { openid: ['sub', 'groups'] },
    conformIdTokenClaims: false,
    pkce: { required: () => true },
    cookies: { keys: ['a test has no secrets'] },
    findAccount: (_, id) => ({
      accountId: id, claims: () => ({ sub: id, groups: groups[id] ?? [] }),
    }),
  });
  return provider.callback();
}

function signed(claims) {
  const text = (part) => Buffer.from(JSON.stringify(part)).toString('base64url');
  const body = `${text({ alg: 'RS256', kid: key.kid })}.${text(claims)}`;
  const by = createPrivateKey({ key, format: 'jwk' });
  return `${body}.${sign('sha256', Buffer.from(body), by).toString('base64url')}`;
}

let answer = serve();
createServer((request, response) => answer(request, response)).listen(port, '127.0.0.1', () => {
  console.log('> ready');
});
createInterface({ input: process.stdin }).on('line', (line) => {
  const [command, ...rest] = line.split(' ');
  if (command === 'rotate') { answer = serve(); console.log('> rotated'); }
  if (command === 'sign') console.log(`> ${signed(JSON.parse(rest.join(' ')))}`);
}).on('close', () => process.exit(0));
