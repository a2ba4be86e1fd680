/** Requests to the server this page came from, and to no other. */

/** The server answered, and said no. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string | null,
  ) {
    super(message);
    this.name = "Refusal";
  }
}

/** Nobody answered. */
export class Offline extends Error {
  constructor() {
    super("the server does not answer");
    this.name = "Offline";
  }
}

export interface Options {
  readonly body?: unknown;
  /** Sent as it is, in place of a body in JSON. */
  readonly file?: Blob;
  readonly method?: "GET" | "POST" | "DELETE";
  readonly signal?: AbortSignal | undefined;
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

const TOKEN = "roofline.token";
let token = keptToken();

/**
 * A token in the address's fragment never reaches a server's log. It is kept until the tab is closed and taken out of the address at once:
 * links, exports and the history go to others.
 */
function keptToken(): string | null {
  const written = /(?:^#|&)token=([^&]*)/.exec(window.location.hash)?.[1];
  if (written !== undefined) window.history.replaceState(null, "", window.location.pathname + window.location.search);
  const found = written ? plain(written) : null;
  try {
    if (found) window.sessionStorage.setItem(TOKEN, found);
    return window.sessionStorage.getItem(TOKEN);
  } catch {
    return found;
  }
}

function plain(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Takes a token that was added to the address of the open page; whether there was one. */
export function takeToken(): boolean {
  const before = token;
  token = keptToken() ?? token;
  return token !== before;
}

export function hasToken(): boolean {
  return token !== null;
}

export function keepToken(next: string): void {
  token = next;
  try {
    window.sessionStorage.setItem(TOKEN, next);
  } catch {
    // it lasts as long as the page
  }
}

export async function send(path: string, options: Options = {}): Promise<Response> {
  const { body, file, signal } = options;
  const method = options.method ?? (body === undefined && file === undefined ? "GET" : "POST");
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (file !== undefined) headers["content-type"] = "application/octet-stream";
  if (token) headers["authorization"] = `Bearer ${token}`;
  const init: RequestInit = { method, headers };
  if (body !== undefined) init.body = JSON.stringify(body);
  if (file !== undefined) init.body = file;
  if (signal) init.signal = signal;
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new Offline();
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function ask<T>(path: string, options: Options = {}): Promise<T> {
  const response = await send(path, options);
  return (await response.json()) as T;
}

async function refusal(response: Response): Promise<Error> {
  // a proxy in between answers 502 or 504 when the server is gone
  if (response.status === 502 || response.status === 504) return new Offline();
  const text = await response.text();
  try {
    const { detail, hint } = JSON.parse(text) as { detail?: unknown; hint?: unknown };
    const message = typeof detail === "string" ? detail : detail === undefined ? text : JSON.stringify(detail);
    return new Refusal(response.status, message, typeof hint === "string" ? hint : null);
  } catch {
    return new Refusal(response.status, text.trim() || `status ${response.status}`, null);
  }
}
